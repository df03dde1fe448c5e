//! The commands, one a file.

pub(crate) mod build;
pub(crate) mod ca;
pub(crate) mod config;
pub(crate) mod deploy;
pub(crate) mod deployments;
pub(crate) mod dev;
pub(crate) mod init;
pub(crate) mod methods;
pub(crate) mod new;
pub(crate) mod run;
pub(crate) mod send;
pub(crate) mod status;
