//! Responses that go on: their sender is checked again and again, and a slow reader holds up only its own.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::channel::mpsc;
use futures::{SinkExt, StreamExt};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue};
use http_body_util::StreamBody;
use hyper::body::Frame;
use ostraca_wire::server::{Charge, Service};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::problem::Problem;
use crate::sessions::Place;

/// How often a silent response shows that it is alive, so that proxies keep it open.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The sender's side of a response that goes on.
pub(crate) struct ResponseStream<S: Service> {
    app: Arc<App<S>>,
    /// Of the request: its token is checked again whenever the policy or the revocations change.
    headers: HeaderMap,
    changes: Option<watch::Receiver<u64>>,
    sender: mpsc::Sender<(Bytes, Option<Arc<Charge>>)>,
    _place: Place<S>,
}

impl<S: Service> ResponseStream<S> {
    /// A response to a request with these headers, which takes a place until it ends.
    pub(crate) fn open(
        app: Arc<App<S>>,
        headers: HeaderMap,
        place: Place<S>,
        content_type: &'static str,
    ) -> (Self, Response) {
        // One part at a time.
        let (sender, receiver) = mpsc::channel(0);
        let mut response = Response::new(Body::new(StreamBody::new(
            // Until the next part is asked for, the last one counts.
            receiver.scan(None, |last, (bytes, charge): (Bytes, Option<Arc<Charge>>)| {
                *last = charge;
                std::future::ready(Some(Ok::<_, Infallible>(Frame::data(bytes))))
            }),
        )));
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        let changes = app.server.service().access_changes();
        (Self { app, headers, changes, sender, _place: place }, response)
    }

    /// Waits until the token is no longer accepted.
    pub(crate) async fn refused(&mut self) -> Problem {
        loop {
            let valid_for = match self.app.auth.holder(&self.headers) {
                Ok(holder) => holder.remaining(),
                Err(problem) => return problem,
            };
            let changed = async {
                match &mut self.changes {
                    // The sender lives as long as the node.
                    Some(changes) => drop(changes.changed().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = sleep(valid_for) => {}
            }
        }
    }

    /// Sends a part, and returns whether the caller still reads.
    pub(crate) async fn send(&mut self, text: String, charge: Option<Arc<Charge>>) -> bool {
        let limit = self.app.server.limits().reply_timeout;
        let sent = timeout(limit, self.sender.send((text.into(), charge))).await;
        matches!(sent, Ok(Ok(())))
    }
}
