//! Attacks by guests: for each host function at least one that overuses it, and how its turns may end.
//!
//! `make bench ONLY=ZOO` measures how they affect neighbours, and `tests/hostile.rs` runs each of them once.

mod attack;
mod list;
mod sink;

pub use attack::{Endings, GuestAttack, RESULT};
pub use list::attacks;
pub use sink::Sink;

/// The manifest of `misbehaving` for these attacks.
#[must_use]
pub fn manifest(sink: &Sink) -> String {
    format!(
        "[limits]\nmemory = \"32 MiB\"\nhttp-timeout = \"1 s\"\n\
         [grants]\ntell = [\"misbehaving\"]\nask = [\"misbehaving\"]\n\
         secrets = [\"v\"]\nsettings = [\"v\"]\n\
         http = [\"127.0.0.1:{}\", \"10.0.0.1\"]\n",
        sink.port
    )
}

/// The settings of the node for these attacks: guests may call [`Sink`].
pub const SETTINGS: &str = "[outgoing-http]\nallow-addresses = [\"127.0.0.0/8\"]\n";
