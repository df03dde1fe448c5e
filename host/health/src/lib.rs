//! Health checks: whether the process of a silent node is *known* to have ended (S7, S12, R9).
//!
//! A node that has ended is replaced when its lease has lapsed. A [`HealthCheck`] may hasten that, and nothing else:
//! only [`CheckOutcome::Ended`] has an effect, and it is an error to return it for a process that may still run. A node
//! that runs although it is marked dead can commit nothing, but answers queries from its memory until its own lease
//! ends. [`CommandCheck`] asks a program and [`HttpCheck`] a server of the operator; the check of Kubernetes is in
//! `ostraca-node`, and a program that embeds a node may bring its own one. [`CheckRunner`] bounds any of them.
//!
//! Confusing at first: a check is about one incarnation, not about a node. "The service has stopped" is true of a
//! node's last process while its next one is already a member. So a check is told which process it is asked about
//! ([`Suspect`]), and an answer must be about exactly that one.

mod check;
mod command;
mod error;
mod http_check;
mod runner;
mod suspect;
mod this_process;

pub use check::{CheckOutcome, HealthCheck};
pub use command::{CommandCheck, CommandSettings};
pub use error::HealthCheckError;
pub use http_check::{HttpCheck, HttpCheckSettings};
pub use runner::CheckRunner;
pub use suspect::Suspect;
pub use this_process::describe_this_process;
