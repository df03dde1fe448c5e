//! `/v1/admin/{request}`: what operators ask, in JSON.
//!
//! A request and the frames of its response are messages of the protocol's admin streams, as protobuf maps them to JSON.
//! They are handled, and permitted, like those that come over QUIC. What carries components, backups, keys or secrets is
//! left to the command line.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use ostraca_codes::codes;
use ostraca_wire::proto::{AdminResponse, admin_response};
use ostraca_wire::server::{LocalAnswer, Service, json};
use tokio::time::sleep;

use crate::app::App;
use crate::calls::JSON;
use crate::problem::Problem;
use crate::sent::SentBytes;
use crate::stream::{KEEP_ALIVE, ResponseStream};

/// The requests that are served over HTTP.
const SERVED: [&str; 17] = [
    "activate",
    "audit",
    "dead-letters",
    "deployments",
    "drain",
    "entities",
    "events",
    "figures",
    "forget",
    "inspect",
    "methods",
    "nodes",
    "pauses",
    "rebalance",
    "shards",
    "status",
    "who-am-i",
];

pub(crate) async fn ask<S: Service>(
    State(app): State<Arc<App<S>>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let principal = app.auth.holder(request.headers())?.principal;
    let place = app.sessions.enter(&principal, None)?;
    let name = path.map(|Path(name)| name).unwrap_or_default();
    if !SERVED.contains(&name.as_str()) {
        let text = format!("there is no request {name:?} over HTTP");
        let help = format!("there are {}; use the command line for others", SERVED.join(", "));
        let code = codes::UNKNOWN_REQUEST;
        return Err(Problem::refused(StatusCode::NOT_FOUND, code, text).help(&help));
    }
    let headers = request.headers().clone();
    let body = app.body(request, &place.bodies).await?;
    let body = if body.is_empty() { "{}".into() } else { body };
    let asked = json::admin_request(&name, &body).map_err(Problem::of)?;
    // The body may have taken a while, and the token may have been revoked.
    let holder = app.auth.holder(&headers)?;
    let client = app.server.local_client(&holder.principal, holder.subjects);
    let mut answer = app.server.ask_locally(&client, asked).await.map_err(Problem::of)?;
    if let Some(frame) = answer.single() {
        let fields = [
            (CONTENT_TYPE, JSON),
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        // It counts as one of the principal's requests, and towards its budget, until it is handed to the connection.
        let body = SentBytes::new(line(&frame).into(), (answer, place.permit));
        return Ok((fields, Body::new(body)).into_response());
    }
    let stop = app.stop.clone();
    let (stream, response) = ResponseStream::open(app, headers, place, "application/x-ndjson");
    tokio::spawn(async move {
        let _ = stop.run_until_cancelled(send(stream, answer)).await;
    });
    Ok(response)
}

/// Sends the frames of a response, one in each line. Empty lines keep it open.
async fn send<S: Service>(mut stream: ResponseStream<S>, mut answer: LocalAnswer) {
    loop {
        let text = tokio::select! {
            problem = stream.refused() => {
                let response = Some(admin_response::Response::Problem(problem.to_wire()));
                stream.send(line(&AdminResponse { more: false, response }), None).await;
                return;
            }
            () = sleep(KEEP_ALIVE) => "\n".into(),
            frame = answer.next() => match frame {
                Some(frame) => line(&frame),
                None => return,
            },
        };
        if !stream.send(text, None).await {
            return;
        }
    }
}

fn line(frame: &AdminResponse) -> String {
    json::admin_response(frame) + "\n"
}
