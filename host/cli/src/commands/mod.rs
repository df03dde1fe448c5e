//! The commands, one per file.

use std::borrow::Cow;
use std::path::Path;

pub(crate) mod activate;
mod activity;
mod as_node;
pub(crate) mod audit;
mod authority;
pub(crate) mod backup;
pub(crate) mod build;
pub(crate) mod ca;
mod ca_rotate;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod dead_letters;
pub(crate) mod delete;
pub(crate) mod deploy;
pub(crate) mod deployments;
pub(crate) mod dev;
mod dev_http;
pub(crate) mod drain;
pub(crate) mod dry_run;
pub(crate) mod entities;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod forget;
pub(crate) mod forget_entity;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod methods;
pub(crate) mod namespaces;
pub(crate) mod new;
pub(crate) mod nodes;
mod phrases;
mod placement;
pub(crate) mod policy;
mod pool_copy;
pub(crate) mod pools;
pub(crate) mod rebalance;
pub(crate) mod repair;
pub(crate) mod reset;
pub(crate) mod restart_entity;
pub(crate) mod revoke;
pub(crate) mod run;
pub(crate) mod send;
pub(crate) mod shards;
mod statistics;
pub(crate) mod status;
pub(crate) mod store;
mod store_move;
pub(crate) mod tell;
pub(crate) mod token;
pub(crate) mod top;

/// A node's configuration: the file itself, or the `ostraca.toml` of a directory, as `ostraca init` creates it.
pub(crate) fn config_file(path: &Path) -> Cow<'_, Path> {
    if path.is_dir() { path.join("ostraca.toml").into() } else { path.into() }
}
pub(crate) mod undeploy;
pub(crate) mod upgrade;
pub(crate) mod variables;
pub(crate) mod watch;
pub(crate) mod whoami;
