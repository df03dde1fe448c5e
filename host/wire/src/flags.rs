//! The flags of a message's envelope.

/// The flag of a message whose session is that of an idempotency key
/// ([`session_of_idempotency_key`](ostraca_core::ids::session_of_idempotency_key)).
pub const KEYED: u32 = 1;

/// The flag of a message of which nobody sends another copy once one may have run (K18): it then ends as `unknown`.
pub const SENT_ONCE: u32 = 2;
