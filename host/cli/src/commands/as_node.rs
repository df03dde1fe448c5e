//! Connects as a node: with its own identity, which may do everything.

use std::net::Ipv4Addr;
use std::path::Path;

use ostraca_client::{Client, Profile};
use ostraca_node::{Config, NodeError};

use super::config_file;
use crate::args::Global;
use crate::connection;
use crate::failure::Failure;

/// Connects to the cluster of the profile or, if there is a node's configuration, to that node as itself.
pub(super) async fn connect(global: &Global, node: Option<&Path>) -> Result<Client, Failure> {
    connection::connect_to(profile(global, node)?).await
}

/// The profile with which [`connect`] connects.
pub(super) fn profile(global: &Global, node: Option<&Path>) -> Result<Profile, Failure> {
    let Some(file) = node else { return connection::profile(global) };
    let config = Config::load(&config_file(file))?;
    let (_, identity) = config.load_identity().map_err(NodeError::from)?;
    let authority = config.load_authority().map_err(NodeError::from)?;
    let mut listen = config.listen;
    if listen.ip().is_unspecified() {
        listen.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    Ok(Profile::new(vec![listen.to_string()], &authority, &identity))
}
