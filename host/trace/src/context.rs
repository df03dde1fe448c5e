//! W3C trace contexts.

use std::sync::Arc;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// The length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// A context as it comes with a message.
struct Headers<'a> {
    traceparent: &'a str,
    tracestate: &'a str,
}

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            TRACEPARENT => Some(self.traceparent),
            TRACESTATE => Some(self.tracestate),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT, TRACESTATE]
    }
}

/// The context, if it is valid and its caller wants a trace.
pub(crate) fn sampled(traceparent: &str, tracestate: &str) -> Option<SpanContext> {
    if traceparent.len() < LENGTH {
        return None;
    }
    let context = TraceContextPropagator::new().extract(&Headers { traceparent, tracestate });
    let parent = context.span().span_context().clone();
    (parent.is_valid() && parent.is_sampled()).then_some(parent)
}

/// A context in the form in which it goes with messages.
pub(crate) fn traceparent(context: &SpanContext) -> Arc<str> {
    let flags = context.trace_flags().to_u8();
    format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id()).into()
}

/// A valid `traceparent` with the sampled flag removed; others as they are.
#[must_use]
pub fn unsampled(traceparent: &str) -> String {
    match sampled(traceparent, "") {
        Some(context) => format!("00-{}-{}-00", context.trace_id(), context.span_id()),
        None => traceparent.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the W3C recommendation.
    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_a_valid_sampled_context_is_traced() {
        let context = sampled(VALID, "rojo=00f067aa0ba902b7").expect("sampled");
        assert_eq!(&*traceparent(&context), VALID);
        assert_eq!(context.trace_state().header(), "rojo=00f067aa0ba902b7");
        assert!(context.is_remote());
        for other in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473x-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
            "\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}",
        ] {
            assert!(sampled(other, "").is_none(), "{other}");
        }
        assert_eq!(unsampled(VALID), VALID.replace("-01", "-00"));
        assert_eq!(unsampled("anything"), "anything");
        // A broken state does not break the trace.
        assert!(sampled(VALID, "===").is_some());
    }
}
