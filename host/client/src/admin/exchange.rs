//! One request and its response, frame by frame.

use bytes::Bytes;
use ostraca_codes::codes;
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::proto::admin_response::Response;
use ostraca_wire::proto::{AdminResponse, ComponentFragment};
use ostraca_wire::{Error, decode_error_message, problem};
use prost::Message as _;

use super::AdminError;

/// Maximum number of a component's bytes per frame.
const FRAGMENT_BYTES: usize = 256 << 10;

pub(super) async fn upload(writer: &mut FrameWriter, mut component: Bytes) -> Result<(), Error> {
    writer.flush().await?;
    while !component.is_empty() {
        let data = component.split_to(FRAGMENT_BYTES.min(component.len()));
        writer.put(&ComponentFragment { data });
        writer.flush().await?;
    }
    writer.finish();
    Ok(())
}

pub(super) async fn receive(reader: &mut FrameReader) -> Result<Vec<Response>, AdminError> {
    let mut responses = Vec::new();
    while let Some(frame) = reader.next().await? {
        let frame = decode(frame)?;
        match frame.response {
            Some(Response::Problem(problem)) => return Err(AdminError::Refused(Box::new(problem))),
            Some(response) => responses.push(response),
            // An unknown response from a newer node: ignore it.
            None => {}
        }
        if !frame.more {
            return Ok(responses);
        }
    }
    Err(too_early())
}

pub(super) fn decode(frame: Bytes) -> Result<AdminResponse, AdminError> {
    AdminResponse::decode(frame).map_err(|e| {
        AdminError::Connection(format!("the response is {}", decode_error_message(&e)))
    })
}

pub(super) fn too_early() -> AdminError {
    AdminError::Connection("response incomplete".into())
}

pub(super) fn unexpected(response: Option<Response>) -> AdminError {
    match response {
        Some(_) => other_question(),
        None => {
            let text = "the node sent a response that this client does not support";
            AdminError::Refused(Box::new(problem(codes::UNEXPECTED_RESPONSE, text)))
        }
    }
}

pub(super) fn other_question() -> AdminError {
    AdminError::Refused(Box::new(problem(
        codes::UNEXPECTED_RESPONSE,
        "response does not match the request",
    )))
}
