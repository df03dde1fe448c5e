//! `/v1/{namespace}/{type}/{id}/dead-letters/{action}`: operators resend or drop dead letters of an entity (R19).

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::StatusCode;
use ostraca_client::{DeadLetterAction, Entity, MAX_DEAD_LETTERS, Reply};
use ostraca_codes::codes;
use ostraca_core::shard::{decode_dead_letters, encode_dead_letters};
use ostraca_wire::proto::MessageKind;
use ostraca_wire::server::Service;
use serde::Deserialize;
use serde_json::json;

use crate::app::App;
use crate::calls::{JSON, answer};
use crate::path::decoded;
use crate::problem::Problem;

#[derive(Deserialize)]
pub(crate) struct DeadLettersPath {
    namespace: String,
    entity_type: String,
    id: String,
    action: String,
}

/// The body of a request. Numbers are decimal texts, as in the response to `/v1/admin/dead-letters`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chosen {
    numbers: Vec<String>,
}

pub(crate) async fn handle<S: Service>(
    State(app): State<Arc<App<S>>>,
    path: Result<Path<DeadLettersPath>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let holder = app.auth.holder(request.headers())?;
    let (path, entity_type) = decoded(path, |path| (&path.namespace, &path.entity_type))?;
    let action = match path.action.as_str() {
        "resend" => DeadLetterAction::Resend,
        "drop" => DeadLetterAction::Drop,
        other => {
            let text = format!("dead letters cannot be handled by {other:?}");
            let refused = Problem::refused(StatusCode::NOT_FOUND, codes::UNKNOWN_PATH, text);
            return Err(refused.help("`resend` sends them again, `drop` deletes them"));
        }
    };
    let call = app.admit(holder, Entity::new(entity_type, path.id), request.headers())?;
    let body = app.body(request, call.bodies()).await?;
    let numbers = encode_dead_letters(&numbers(&body)?).into();
    let (reply, held) =
        app.send(call, action.method().into(), MessageKind::Command, numbers).await?;
    let handled = decode_dead_letters(&reply.body).unwrap_or_default();
    let handled: Vec<_> = handled.iter().map(u64::to_string).collect();
    let body = json!({ "handled": handled }).to_string().into();
    Ok(answer(Reply { body, content_type: JSON.into(), ..reply }, held))
}

/// The chosen dead letters.
fn numbers(body: &[u8]) -> Result<Vec<u64>, Problem> {
    let invalid = |why: String| {
        let text = format!("the body does not name dead letters: {why}");
        Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_REQUEST, text).help(
            "send {\"numbers\":[\"7\"]}, with the numbers that `/v1/admin/dead-letters` shows",
        )
    };
    let Chosen { numbers } =
        serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))?;
    if !(1..=MAX_DEAD_LETTERS).contains(&numbers.len()) {
        return Err(invalid(format!(
            "it has {} numbers, and one request takes 1 to {MAX_DEAD_LETTERS}",
            numbers.len()
        )));
    }
    let number = |text: &String| text.parse().map_err(|_| invalid(format!("{text:?}")));
    numbers.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_1_to_256_dead_letters() {
        let body = |count: usize| json!({ "numbers": vec!["7"; count] }).to_string();
        assert_eq!(numbers(body(1).as_bytes()).ok(), Some(vec![7]));
        assert_eq!(numbers(body(256).as_bytes()).ok(), Some(vec![7; 256]));
        let largest = format!("{{\"numbers\":[\"{}\"]}}", u64::MAX);
        assert_eq!(numbers(largest.as_bytes()).ok(), Some(vec![u64::MAX]));
        for wrong in [
            "",
            "{}",
            "[]",
            "[\"7\"]",
            "{\"numbers\":7}",
            "{\"numbers\":[7]}",
            "{\"numbers\":[\"-7\"]}",
            "{\"numbers\":[\"18446744073709551616\"]}",
            "{\"numbers\":[\"7\"],\"all\":true}",
            &body(0),
            &body(257),
        ] {
            assert!(numbers(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
