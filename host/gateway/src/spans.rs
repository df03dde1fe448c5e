//! The spans of messages on their way through this gateway: from their arrival to their reply.

use ostraca_trace::{Role, Span, Tracer, unsampled};
use ostraca_wire::proto::{Envelope, Outcome, Reply};

/// Starts the span of a client's message, if it wants a trace and there are not too many, and lets the message go on
/// below it. `is_known` says whether the type has the method: its name is the client's choice otherwise.
pub(crate) fn begin_received(
    tracer: &Tracer,
    envelope: &mut Envelope,
    is_known: impl FnOnce(&str) -> bool,
) -> Option<Span> {
    if !tracer.wants(&envelope.traceparent) {
        return None;
    }
    if !tracer.admits() {
        envelope.traceparent = unsampled(&envelope.traceparent);
        return None;
    }
    begin_named(tracer, envelope, Role::Server, |it| {
        let method = if is_known(&it.method) { it.method.as_str() } else { "(unknown)" };
        format!("{}.{method}", it.r#type)
    })
}

/// Starts the span of an entity's message, if its sender's turn is traced, and lets the message go on below it. `step`
/// precedes the method in the span's name.
pub(crate) fn begin(
    tracer: &Tracer,
    envelope: &mut Envelope,
    role: Role,
    step: &'static str,
) -> Option<Span> {
    begin_named(tracer, envelope, role, |it| format!("{step}{}.{}", it.r#type, it.method))
}

fn begin_named(
    tracer: &Tracer,
    envelope: &mut Envelope,
    role: Role,
    name: impl FnOnce(&Envelope) -> String,
) -> Option<Span> {
    let (parent, state) = (&envelope.traceparent, &envelope.tracestate);
    let mut span = tracer.span(parent, state, role, || name(envelope).into())?;
    span.set_entity(&envelope.r#type, &envelope.id);
    envelope.traceparent = span.traceparent().to_string();
    Some(span)
}

/// Ends the span of a message with its reply.
pub(crate) fn end(span: Option<Span>, reply: &Reply) {
    let Some(mut span) = span else { return };
    let outcome = match reply.outcome() {
        Outcome::Result | Outcome::ReplyDropped => "result",
        Outcome::ApplicationError => "application-error",
        Outcome::NotRun => "not-run",
        Outcome::Unknown | Outcome::Unspecified => "unknown",
    };
    span.set("ostraca.outcome", outcome);
    if outcome == "result" {
        return;
    }
    let code = reply.problem.as_ref().map(|problem| problem.code.clone()).unwrap_or_default();
    if !code.is_empty() {
        span.set("error.type", code.clone());
    }
    // An application's error is an answer.
    if outcome != "application-error" {
        span.fail(if code.is_empty() { outcome.to_owned() } else { code });
    }
}
