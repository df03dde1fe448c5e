//! What wit-bindgen generates from `../wit`, and the adapter from it to [`raw::Handler`](crate::raw::Handler).
//!
//! A component exports `stop` only if its entity has the hook. wit-bindgen exports whole worlds, and its macros for
//! one interface clash if two worlds contain it. So the hook is a world of its own here. The component encoder merges
//! the two worlds, which makes them `entity-with-stop` of the WIT.

#![allow(missing_docs, unreachable_pub, clippy::expect_used, clippy::unwrap_used)]

use std::marker::PhantomData;
use std::sync::Once;

use crate::context::MessageKind;
use crate::raw::{Handler, MessageError, StartReason, StopReason};

// The generated code passes arguments and results through linear memory, by raw pointers.
#[allow(unsafe_code)]
pub mod entity {
    wit_bindgen::generate!({
        path: "../wit",
        world: "entity",
        pub_export_macro: true,
        export_macro_name: "export_entity",
        default_bindings_module: "::ostraca_sdk::bindings::entity",
        runtime_path: "::ostraca_sdk::__private::wit_bindgen::rt",
    });
}

#[allow(unsafe_code)]
pub mod stop {
    wit_bindgen::generate!({
        path: "../wit",
        inline: "
            package ostraca:sdk;
            world stop-hook {
                export ostraca:entity/stop@0.1.0;
            }
        ",
        world: "ostraca:sdk/stop-hook",
        pub_export_macro: true,
        export_macro_name: "export_stop",
        default_bindings_module: "::ostraca_sdk::bindings::stop",
        runtime_path: "::ostraca_sdk::__private::wit_bindgen::rt",
    });
}

use entity::exports::ostraca::entity::{handler, methods};
use entity::ostraca::entity as wit;

/// The exports of a component whose entity is `H`.
pub struct Adapter<H>(PhantomData<H>);

impl<H: Handler> methods::Guest for Adapter<H> {
    fn methods() -> Vec<methods::Method> {
        report_panics();
        let mut all = Vec::new();
        for method in H::methods() {
            let kind = match method.kind {
                MessageKind::Command => wit::types::MessageKind::Command,
                MessageKind::Query => wit::types::MessageKind::Query,
            };
            all.push(methods::Method { name: method.name, kind, summary: method.summary });
        }
        all
    }
}

impl<H: Handler> handler::Guest for Adapter<H> {
    fn start(reason: handler::StartReason) -> Result<(), String> {
        report_panics();
        H::start(match reason {
            handler::StartReason::FirstMessage => StartReason::FirstMessage,
            handler::StartReason::Message => StartReason::Message,
            handler::StartReason::Remembered => StartReason::Remembered,
        })
    }

    fn message(method: String, body: Vec<u8>) -> Result<Vec<u8>, wit::types::MessageError> {
        report_panics();
        H::message(method, body).map_err(to_wit)
    }
}

impl<H: Handler> stop::exports::ostraca::entity::stop::Guest for Adapter<H> {
    fn stop(reason: stop::exports::ostraca::entity::stop::StopReason) {
        use stop::exports::ostraca::entity::stop::StopReason as Wit;
        report_panics();
        H::stop(match reason {
            Wit::Idle => StopReason::Idle,
            Wit::Evicted => StopReason::Evicted,
            Wit::Passivated => StopReason::Passivated,
            Wit::HandedOff => StopReason::HandedOff,
            Wit::Redeployed => StopReason::Redeployed,
        });
    }
}

fn to_wit(error: MessageError) -> wit::types::MessageError {
    match error {
        MessageError::Application { code, message } => {
            wit::types::MessageError::Application(wit::types::ApplicationError { code, message })
        }
        MessageError::InvalidArguments(why) => wit::types::MessageError::InvalidArguments(why),
        MessageError::UnknownMethod => wit::types::MessageError::UnknownMethod,
    }
}

/// Reports each panic to the host before it becomes a trap, which carries no message by itself.
fn report_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let message = panic.payload_as_str().unwrap_or("a panic without a text");
            let (file, line) = panic.location().map_or(("", 0), |at| (at.file(), at.line()));
            wit::log::report_panic(message, file, line);
        }));
    });
}
