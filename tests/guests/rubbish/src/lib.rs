//! A raw guest that returns rubbish where its id or the method's name asks for it. For tests of the host only.

use ostraca_sdk::context::{self, MessageKind};
use ostraca_sdk::raw::{Handler, MessageError, Method};
use ostraca_sdk::{StartReason, channels, state};

/// Markup, for whoever shows it as such.
const MARKUP: &str = "<img src=x onerror=window.hacked=2>";

/// The handler.
#[derive(Debug)]
pub struct Rubbish;

impl Handler for Rubbish {
    fn methods() -> Vec<Method> {
        let method =
            |name: &str, kind| Method { name: name.to_owned(), kind, summary: String::new() };
        vec![
            method("bytes", MessageKind::Command),
            method("echo", MessageKind::Query),
            method("empty", MessageKind::Query),
            method("code", MessageKind::Command),
            method("write-unlisted", MessageKind::Command),
            method("emit", MessageKind::Command),
            method("fail", MessageKind::Command),
        ]
    }

    fn start(_: StartReason) -> Result<(), String> {
        if context::identity().id == "no-start" {
            return Err("\u{0}\u{1b}[31m a start that fails, with control characters".to_owned());
        }
        Ok(())
    }

    fn message(method: String, body: Vec<u8>) -> Result<Vec<u8>, MessageError> {
        match method.as_str() {
            // Neither UTF-8 nor JSON.
            "bytes" => Ok(vec![0xff, 0xfe, 0x00, b'{', 0xc3]),
            "echo" => Ok(body),
            "empty" => Ok(Vec::new()),
            // A code as long as the body; the contract allows 1 to 128 bytes.
            "code" => Err(MessageError::Application {
                code: "c".repeat(body.len()),
                message: "m".repeat(body.len()),
            }),
            "write-unlisted" => {
                state::set_raw("a key with \u{7f}\u{0} and \u{10ffff}", &[0; 3]);
                Ok(Vec::new())
            }
            "emit" => {
                channels::emit_bytes(MARKUP, MARKUP.as_bytes());
                Ok(Vec::new())
            }
            "fail" => panic!("{MARKUP}"),
            _ => Err(MessageError::UnknownMethod),
        }
    }
}

ostraca_sdk::export!(Rubbish);
