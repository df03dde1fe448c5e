//! Which handler a request goes to.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{connect, get, post};
use http::{Method, StatusCode, Uri};
use ostraca_codes::codes;
use ostraca_wire::server::Service;

use crate::app::App;
use crate::problem::{Problem, wrong_method};
use crate::{
    admin, calls, channels, dead_letters, health, login, openapi, origin, page, webtransport,
};

pub(crate) fn router<S: Service>(app: &Arc<App<S>>) -> Router {
    let call = "/v1/{namespace}/{entity_type}/{id}/call/{method}";
    let channel = "/v1/{namespace}/{entity_type}/{id}/channel/{channel}";
    let dead_letters = "/v1/{namespace}/{entity_type}/{id}/dead-letters/{action}";
    let (readiness, state) = (Arc::clone(&app.readiness), Arc::clone(app));
    Router::new()
        .route(
            call,
            get(calls::call_entity::<S>).post(calls::call_entity::<S>).fallback(other_method),
        )
        .route(channel, get(channels::follow::<S>).fallback(not_a_get))
        .route(dead_letters, post(dead_letters::handle::<S>).fallback(not_a_post))
        .route(webtransport::PATH, connect(webtransport::admit).fallback(webtransport::refuse))
        .route("/openapi.json", get(openapi::show::<S>).fallback(not_a_get))
        .route("/v1/admin/{request}", post(admin::ask::<S>).fallback(not_a_post))
        .route("/console/login", post(login::log_in::<S>).fallback(not_a_post))
        .route("/console/logout", post(login::log_out::<S>).fallback(not_a_post))
        .fallback(unknown_path)
        // The last one is the first to see a request.
        .layer(middleware::from_fn_with_state(Arc::clone(app), login::admit_cookie::<S>))
        .layer(origin::cors(app))
        .layer(middleware::from_fn_with_state(Arc::clone(app), origin::check_origin::<S>))
        // Other sites may have links to the console.
        .route("/", get(page::root).fallback(not_a_get))
        .route("/console", get(page::root).fallback(not_a_get))
        .route("/console/", get(page::index).fallback(not_a_get))
        .route("/console/{file}", get(page::file).fallback(not_a_get))
        .layer(middleware::from_fn_with_state(Arc::clone(app), check_host::<S>))
        .layer(middleware::from_fn_with_state(Arc::clone(app), count::<S>))
        .with_state(state)
        // Whoever asks these knows the node by any address, and learns nothing from them.
        .route("/livez", get(health::livez))
        .route("/readyz", get(move || async move { health::readyz(&readiness) }))
}

async fn count<S: Service>(
    State(app): State<Arc<App<S>>>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let response = next.run(request).await;
    app.stats.http.responded(response.status().as_u16(), began.elapsed());
    response
}

async fn check_host<S: Service>(
    State(app): State<Arc<App<S>>>,
    request: Request,
    next: Next,
) -> Response {
    match app.hosts.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

async fn unknown_path(uri: Uri) -> Problem {
    let text = format!("there is nothing at {:?}", uri.path());
    Problem::refused(StatusCode::NOT_FOUND, codes::UNKNOWN_PATH, text)
        .help("calls are at /v1/NAMESPACE/TYPE/ID/call/METHOD, channels at /v1/NAMESPACE/TYPE/ID/channel/NAME, and dead letters at /v1/NAMESPACE/TYPE/ID/dead-letters/resend and drop, with the namespace `default` for types without one, and with `/` in an id written as %2F")
}

async fn other_method(method: Method) -> Response {
    wrong_method("GET, POST", format!("a call is a POST, or a GET for a query, but not a {method}"))
}

async fn not_a_post(method: Method) -> Response {
    wrong_method("POST", format!("this is sent with POST, not with {method}"))
}

async fn not_a_get(method: Method) -> Response {
    wrong_method("GET", format!("this is read with GET, not with {method}"))
}
