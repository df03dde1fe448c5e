//! Writes a guest's lines to the node's log under the entity's name, limited in rate and length.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::text::{one_line, printable};
use crate::{EntityIdentity, Failure, InstanceLimits, MessageContext};

/// The `tracing` target of guests' lines.
pub const TARGET: &str = "ostraca::guest";

/// Maximum length in bytes of a message's `traceparent` in a line. In version 00 of the W3C format it is 55 bytes long.
const MAX_TRACEPARENT_BYTES: usize = 64;

/// The level of a line. Most variants are only constructed by lifting them from a guest, which the compiler does not
/// see.
#[derive(Debug, Clone, Copy, wasmtime::component::ComponentType, wasmtime::component::Lift)]
#[allow(dead_code, reason = "constructed by the derived Lift")]
#[component(enum)]
#[repr(u8)]
pub(crate) enum Level {
    #[component(name = "trace")]
    Trace,
    #[component(name = "debug")]
    Debug,
    #[component(name = "info")]
    Info,
    #[component(name = "warn")]
    Warn,
    #[component(name = "error")]
    Error,
}

/// One instance's log, shared with its standard output and standard error if it has them.
pub(crate) struct GuestLog {
    identity: EntityIdentity,
    lines: u32,
    max_line_bytes: usize,
    bucket: Mutex<Bucket>,
    /// The `traceparent` of the message that is being handled; empty if there is none.
    traceparent: Mutex<Arc<str>>,
    has_traceparent: AtomicBool,
}

struct Bucket {
    tokens: f64,
    filled: Instant,
    dropped: u64,
}

/// The id of the trace that a W3C `traceparent` names, if it does: a client chose it.
fn trace_id(traceparent: &str) -> Option<&str> {
    let id = traceparent.split('-').nth(1)?;
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

impl GuestLog {
    pub(crate) fn new(identity: EntityIdentity, limits: &InstanceLimits) -> GuestLog {
        let bucket = Bucket {
            tokens: f64::from(limits.log_lines_per_second),
            filled: Instant::now(),
            dropped: 0,
        };
        GuestLog {
            identity,
            lines: limits.log_lines_per_second,
            max_line_bytes: limits.log_line_bytes,
            bucket: Mutex::new(bucket),
            traceparent: Mutex::default(),
            has_traceparent: AtomicBool::new(false),
        }
    }

    pub(crate) fn identity(&self) -> &EntityIdentity {
        &self.identity
    }

    /// Maximum length of a line in bytes; the rest is cut.
    pub(crate) fn max_line_bytes(&self) -> usize {
        self.max_line_bytes
    }

    /// Returns how many lines were dropped since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.bucket.lock().unwrap_or_else(PoisonError::into_inner).dropped)
    }

    /// Ends the trace context of lines.
    pub(crate) fn clear_traceparent(&self) {
        if self.has_traceparent.swap(false, Ordering::Relaxed) {
            *self.traceparent.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
        }
    }

    /// Sets the trace context of the lines that follow; empty for none.
    pub(crate) fn set_traceparent(&self, traceparent: &Arc<str>) {
        // Nearly every message has none: then nothing is touched that other threads touch too.
        let had = self.has_traceparent.swap(!traceparent.is_empty(), Ordering::Relaxed);
        if had || !traceparent.is_empty() {
            *self.traceparent.lock().unwrap_or_else(PoisonError::into_inner) = traceparent.clone();
        }
    }

    /// Logs a line, cut to its limit, if the rate allows it.
    pub(crate) fn line(&self, level: Level, line: &str) {
        if self.admit() {
            let (line, cut) = self.cut(line);
            self.emit(level, line, cut);
        }
    }

    /// Logs one line about a failed call, whatever failed. Not rate-limited, since each failure ends an instance.
    pub(crate) fn failed(
        &self,
        failure: &Failure,
        backtrace: Option<&str>,
        message: Option<&MessageContext>,
    ) {
        let EntityIdentity { namespace, entity_type, id, revision } = &self.identity;
        // Function names come from the component and ids from clients, so both must be made printable.
        let (id, backtrace) = (printable(id), one_line(backtrace.unwrap_or_default()));
        let text = &failure.message;
        let (principal, origin, traceparent) = message.map_or(("", "", ""), |message| {
            (&*message.principal, &*message.origin, &*message.traceparent)
        });
        // The client chose this value.
        let trace_id = trace_id(traceparent);
        let traceparent =
            printable(&traceparent[..traceparent.floor_char_boundary(MAX_TRACEPARENT_BYTES)]);
        tracing::warn!(target: TARGET, %namespace, r#type = %entity_type, %id, revision, code = failure.code.as_str(), principal, origin, trace_id, %traceparent, %backtrace, "{text}");
    }

    fn admit(&self) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let rate = f64::from(self.lines);
        bucket.tokens =
            (bucket.tokens + now.duration_since(bucket.filled).as_secs_f64() * rate).min(rate);
        bucket.filled = now;
        if bucket.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            return true;
        }
        bucket.dropped += 1;
        false
    }

    fn cut<'a>(&self, line: &'a str) -> (&'a str, usize) {
        let end = line.floor_char_boundary(self.max_line_bytes);
        (&line[..end], line.len() - end)
    }

    fn emit(&self, level: Level, line: &str, cut: usize) {
        let EntityIdentity { namespace, entity_type, id, revision } = &self.identity;
        let (id, line) = (printable(id), printable(line));
        let traceparent = self.traceparent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let trace_id = trace_id(&traceparent);
        // tracing needs a constant level, hence an arm for each.
        macro_rules! emit {
            ($level:ident) => {
                tracing::$level!(target: TARGET, %namespace, r#type = %entity_type, %id, revision, trace_id, cut, "{line}")
            };
        }
        match level {
            Level::Trace => emit!(trace),
            Level::Debug => emit!(debug),
            Level::Info => emit!(info),
            Level::Warn => emit!(warn),
            Level::Error => emit!(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_only_a_valid_trace() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let traceparent = |id: &str| format!("00-{id}-00f067aa0ba902b7-00");
        assert_eq!(trace_id(&traceparent(id)), Some(id), "also if it is not sampled");
        for other in
            ["", "00", "00-1234-00f067aa0ba902b7-01", &traceparent(&id.replace('4', "\u{e4}"))]
        {
            assert_eq!(trace_id(other), None, "{other}");
        }
    }
}
