//! `/v1/{namespace}/{type}/{id}/channel/{name}`: the items of a channel as server-sent events.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, StatusCode, Uri};
use ostraca_codes::codes;
use ostraca_wire::proto::{self, ChannelItem, Subscribe, subscribe};
use ostraca_wire::server::{ClientInfo, Service, SubscriptionEvent};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::sleep;

use crate::app::App;
use crate::path::decoded;
use crate::problem::Problem;
use crate::stream::{KEEP_ALIVE, ResponseStream};

/// Where an earlier response ended.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

#[derive(Deserialize)]
pub(crate) struct ChannelPath {
    namespace: String,
    entity_type: String,
    id: String,
    channel: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    #[serde(default)]
    from: String,
}

pub(crate) async fn follow<S: Service>(
    State(app): State<Arc<App<S>>>,
    path: Result<Path<ChannelPath>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let holder = app.auth.holder(request.headers())?;
    let (path, entity_type) = decoded(path, |path| (&path.namespace, &path.entity_type))?;
    let place = app.sessions.enter(&holder.principal, None)?;
    let from = beginning(request.uri(), request.headers())?;
    let client = app.server.local_client(&holder.principal, holder.subjects.clone());
    let ChannelPath { id, channel, .. } = path;
    let subscribe =
        Subscribe { namespace: String::new(), r#type: entity_type.clone(), id, channel, from };
    let refused = |problem: proto::Problem| Problem::of(problem);
    let events = app.server.subscribe_locally(&client, subscribe).await.map_err(refused)?;
    let (stop, headers) = (app.stop.clone(), request.headers().clone());
    let service = Arc::clone(app.server.service());
    let (stream, response) = ResponseStream::open(app, headers, place, "text/event-stream");
    let following = Following { service, client, entity_type, stream };
    tokio::spawn(async move {
        // The caller connects to another node, or to this one later.
        let _ = stop.run_until_cancelled(following.run(events)).await;
    });
    Ok(response)
}

/// Where a response begins: behind the last event of an earlier one, or where the parameter `from` says.
fn beginning(uri: &Uri, headers: &HeaderMap) -> Result<Option<subscribe::From>, Problem> {
    if let Some(last) = headers.get(LAST_EVENT_ID) {
        let text = "`last-event-id` is not text".to_owned();
        let invalid = |_| Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_HEADER, text);
        let cursor = last.to_str().map_err(invalid)?.to_owned();
        return Ok(Some(subscribe::From::AfterCursor(cursor)));
    }
    let wrong = |text: String| {
        Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_QUERY_STRING, text)
            .help("the only parameter is `from`: `now`, `oldest`, or `version:` and the version of a call's result")
    };
    let Query(Parameters { from }) =
        Query::try_from_uri(uri).map_err(|error| wrong(error.body_text()))?;
    match from.as_str() {
        "" | "now" => Ok(None),
        "oldest" => Ok(Some(subscribe::From::Oldest(true))),
        other => match other.strip_prefix("version:").map(str::parse) {
            Some(Ok(version)) => Ok(Some(subscribe::From::AfterVersion(version))),
            _ => Err(wrong(format!("{other:?} is no beginning"))),
        },
    }
}

/// A response that goes on.
struct Following<S: Service> {
    service: Arc<S>,
    client: Arc<ClientInfo>,
    entity_type: String,
    stream: ResponseStream<S>,
}

impl<S: Service> Following<S> {
    async fn run(mut self, mut events: tokio::sync::mpsc::Receiver<SubscriptionEvent>) {
        loop {
            let event = tokio::select! {
                problem = self.stream.refused() => return self.end(problem).await,
                () = sleep(KEEP_ALIVE) => None,
                event = events.recv() => match event {
                    Some(event) => Some(event),
                    // The node is stopping.
                    None => return,
                },
            };
            let mut charge = None;
            let text = match event {
                None => ":\n\n".to_owned(),
                Some(SubscriptionEvent::Position(position)) => {
                    // Without data, it only sets the id with which the caller comes back.
                    format!("id: {}\n\n", position.cursor)
                }
                Some(SubscriptionEvent::Lost(lost)) => {
                    let count = lost.count.map_or("null".into(), |count| count.to_string());
                    format!("event: lost\ndata: {{\"count\":{count}}}\n\n")
                }
                Some(SubscriptionEvent::Problem(problem)) => {
                    return self.end(Problem::of(problem)).await;
                }
                Some(SubscriptionEvent::Items(items, charged)) => {
                    charge = Some(charged);
                    let permitted =
                        self.service.check_subscription(&self.client, &self.entity_type);
                    if let Err(problem) = permitted {
                        return self.end(Problem::of(problem)).await;
                    }
                    items.items.iter().map(shown).collect()
                }
            };
            if !self.stream.send(text, charge).await {
                return;
            }
        }
    }

    /// Says why nothing follows.
    async fn end(&mut self, problem: Problem) {
        self.stream.send(format!("event: problem\ndata: {}\n\n", problem.json()), None).await;
    }
}

/// An item as an event: its data is JSON with the item, or with its bytes in base64 if they are not JSON in one line.
fn shown(item: &ChannelItem) -> String {
    let text = std::str::from_utf8(&item.data).ok().filter(|text| {
        !text.contains(['\n', '\r']) && serde_json::from_str::<IgnoredAny>(text).is_ok()
    });
    let data = match text {
        Some(json) => format!("\"item\":{json}"),
        None => format!("\"base64\":\"{}\"", BASE64_STANDARD.encode(&item.data)),
    };
    let ChannelItem { cursor, version, utc_ms, .. } = item;
    format!("id: {cursor}\ndata: {{\"version\":{version},\"utc-ms\":{utc_ms},{data}}}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_cannot_begin_another_event() {
        let shown = |data: &'static [u8]| {
            let item = ChannelItem { cursor: "c".into(), version: 1, utc_ms: 2, data: data.into() };
            shown(&item)
        };
        assert_eq!(
            shown(b"{\"a\":1}"),
            "id: c\ndata: {\"version\":1,\"utc-ms\":2,\"item\":{\"a\":1}}\n\n"
        );
        for data in [&b"{\"a\":\n\ndata: 1}"[..], b"1\r\n\r\nevent: x", b"\xff", b""] {
            let text = shown(data);
            assert_eq!(
                (text.matches('\n').count(), text.matches('\r').count()),
                (3, 0),
                "{text:?}"
            );
            assert!(text.contains("\"base64\":\""), "{text}");
        }
    }
}
