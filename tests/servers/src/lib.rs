//! Servers of other projects for tests. Each is installed from Debian's package if the tests run as root, is started on a
//! port and in a directory of its own, and ends with its value.
#![allow(clippy::missing_panics_doc, reason = "a test that lacks its server fails by panicking")]

pub mod postgres;
