//! One real node: its start, its limits, and input that nobody should send.

mod backups;
mod bad_input;
mod bad_start;
mod bad_stores;
mod capacity;
mod copies;
mod harness;
mod hostile;
mod kubernetes;
mod logs;
mod moved_stores;
mod openapi;
mod order;
mod replay;
mod syncs;
