//! Output to the node's log, under the entity's name.
//!
//! `log::info!("added {by}")` and its siblings format and log one line. The node limits the rate: it counts and drops
//! lines beyond the limit.

pub use crate::types::Level;

/// Logs one line.
pub fn log(level: Level, message: &str) {
    crate::host::log(level, message);
}

/// Logs at [`Level::Trace`].
#[doc(hidden)]
#[macro_export]
macro_rules! __log_trace {
    ($($line:tt)*) => { $crate::log::log($crate::log::Level::Trace, &::std::format!($($line)*)) };
}

/// Logs at [`Level::Debug`].
#[doc(hidden)]
#[macro_export]
macro_rules! __log_debug {
    ($($line:tt)*) => { $crate::log::log($crate::log::Level::Debug, &::std::format!($($line)*)) };
}

/// Logs at [`Level::Info`].
#[doc(hidden)]
#[macro_export]
macro_rules! __log_info {
    ($($line:tt)*) => { $crate::log::log($crate::log::Level::Info, &::std::format!($($line)*)) };
}

/// Logs at [`Level::Warn`].
#[doc(hidden)]
#[macro_export]
macro_rules! __log_warn {
    ($($line:tt)*) => { $crate::log::log($crate::log::Level::Warn, &::std::format!($($line)*)) };
}

/// Logs at [`Level::Error`].
#[doc(hidden)]
#[macro_export]
macro_rules! __log_error {
    ($($line:tt)*) => { $crate::log::log($crate::log::Level::Error, &::std::format!($($line)*)) };
}

#[doc(inline)]
pub use {
    __log_debug as debug, __log_error as error, __log_info as info, __log_trace as trace,
    __log_warn as warn,
};
