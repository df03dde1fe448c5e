//! Connects the component's exports, as wit-bindgen generates them, to [`raw::Handler`](crate::raw::Handler).

use std::marker::PhantomData;
use std::sync::Once;

use crate::bindings::entity::exports::ostraca::entity::{handler, methods};
use crate::bindings::entity::ostraca::entity as wit;
use crate::bindings::migration::exports::ostraca::entity::migration;
use crate::bindings::schemas::exports::ostraca::entity::schemas;
use crate::bindings::stop::exports::ostraca::entity::stop;
use crate::bindings::timer::exports::ostraca::entity::timer_handler;
use crate::raw::{
    Firing, Handler, MessageError, Migration, SchemaProvider, StartReason, StopReason, TimerHandler,
};
use crate::types::MessageKind;

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

impl<H: Handler> stop::Guest for Adapter<H> {
    fn stop(reason: stop::StopReason) {
        report_panics();
        H::stop(match reason {
            stop::StopReason::Idle => StopReason::Idle,
            stop::StopReason::Evicted => StopReason::Evicted,
            stop::StopReason::Passivated => StopReason::Passivated,
            stop::StopReason::HandedOff => StopReason::HandedOff,
            stop::StopReason::Redeployed => StopReason::Redeployed,
        });
    }
}

impl<H: Migration> migration::Guest for Adapter<H> {
    fn schema_version() -> u32 {
        report_panics();
        H::schema_version()
    }

    fn newest_schema() -> u32 {
        report_panics();
        H::newest_schema()
    }

    fn migrate(from_schema: u32) -> Result<(), String> {
        report_panics();
        H::migrate(from_schema)
    }
}

impl<H: TimerHandler> timer_handler::Guest for Adapter<H> {
    fn timer(firing: timer_handler::Firing) -> Result<(), timer_handler::ApplicationError> {
        report_panics();
        let firing = Firing {
            name: firing.name,
            payload: firing.payload,
            due: firing.due,
            missed: firing.missed,
            attempt: firing.attempt,
        };
        H::timer(firing)
            .map_err(|(code, message)| timer_handler::ApplicationError { code, message })
    }
}

impl<H: SchemaProvider> schemas::Guest for Adapter<H> {
    fn schemas() -> Vec<schemas::MethodSchema> {
        report_panics();
        let schemas = H::schemas().into_iter().map(|it| schemas::MethodSchema {
            method: it.method,
            arguments: it.arguments,
            result: it.result,
        });
        schemas.collect()
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

/// Reports each panic to the host before it becomes a trap, since a trap carries no message.
fn report_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let message = panic.payload_as_str().unwrap_or("panic without a message");
            let (file, line) = panic.location().map_or(("", 0), |at| (at.file(), at.line()));
            wit::log::report_panic(message, file, line);
        }));
    });
}
