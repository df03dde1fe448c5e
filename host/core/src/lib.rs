//! The core of Ostraca: who owns what, what runs when, and what may be answered.
//!
//! This crate is sans-IO. It has no clock, socket, task or randomness of its own: a machine receives an event and
//! the time (`handle`), and returns actions (`poll`). A node carries them out; the simulator does the same in
//! virtual time, with exactly the same code.

pub mod assign;
pub mod codec;
mod extension_error;
pub mod extensions;
pub mod format;
pub mod hash;
pub mod ids;
pub mod message;
pub mod names;
pub mod node;
pub mod pools;
pub mod quota;
pub mod records;
pub mod route;
pub mod rows;
pub mod shard;
