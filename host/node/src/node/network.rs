//! A node's side of the network: one socket for clients and nodes, open before the parts behind it exist.
//!
//! Until the node is ready, connections get `starting`. Each backend is set once it exists: the rows when the store
//! is found, the gateway when it is created, and the admin service last.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use ostraca_config::Config;
use ostraca_control::ControlThread;
use ostraca_core::format;
use ostraca_core::ids::Incarnation;
use ostraca_core::rows::Member;
use ostraca_gateway::Gateway;
use ostraca_store_peer::{ClusterServer, EntityServer, ServerOptions};
use ostraca_wire::hello::NodeDescriptor;
use ostraca_wire::identity::{Identity, TrustRoot};
use ostraca_wire::peer::{PeerDescriptor, PeerDialer};
use ostraca_wire::server::{PeerConfig as PeerSide, Server};
use tokio::runtime::Handle;

use super::builder::NodeBuilder;
use super::store_access::StoreHandles;
use crate::error::NodeError;
use crate::peers::{PeerBackend, PeerStreamHandler};
use crate::service::ClientService;
use crate::stores::LocalStore;

/// The socket and its connection handlers.
pub(super) struct Network {
    pub(super) server: Arc<Server<ClientService>>,
    pub(super) dialer: PeerDialer,
    pub(super) address: SocketAddr,
    /// Addresses at which others reach the node.
    pub(super) addresses: Vec<String>,
    pub(super) client_service: Arc<ClientService>,
    peers: Arc<PeerBackend>,
    /// What the node announces to other nodes.
    descriptor: PeerDescriptor,
}

impl Network {
    /// Binds the socket. Nothing is read from it until [`Server::run`].
    pub(super) fn bind(
        basis: &NodeBuilder,
        identity: &Identity,
        trust: &TrustRoot,
        control: &ControlThread,
        own: Option<&LocalStore>,
    ) -> Result<Self, NodeError> {
        let config = &basis.config;
        let descriptor = descriptor(basis, own);
        let entities = own.map(|own| EntityServer::new(own.sled.clone(), ServerOptions::default()));
        let peers = Arc::new(PeerBackend {
            bulk_runtime: Handle::current(),
            control_runtime: control.runtime.clone(),
            control_inbox: control.inbox.clone(),
            entity_server: entities,
            cluster_server: OnceLock::new(),
            gateway: OnceLock::new(),
        });
        let client_service = Arc::new(ClientService::new(basis.access.clone(), basis.cluster));
        let (server, dialer) = Server::bind_with_peers(
            config.listen,
            "listen",
            identity,
            trust,
            config.wire_limits(),
            PeerSide {
                descriptor: descriptor.clone(),
                service: Arc::new(PeerStreamHandler(peers.clone())),
            },
            client_service.clone(),
        )?;
        let address = server.local_addr()?;
        let addresses = announced(config, address);
        let server = Arc::new(server);
        Ok(Self { server, dialer, address, addresses, client_service, peers, descriptor })
    }

    /// Sets what the store says about the cluster, once the store is found. From then on, other nodes can read the
    /// store's rows here.
    pub(super) fn set_cluster_info(&mut self, stores: &StoreHandles) {
        // Cannot fail: it is set only here.
        let rows = ClusterServer::new(stores.cluster_store.clone(), ServerOptions::default());
        let _ = self.peers.cluster_server.set(rows);
        self.descriptor.node.store_id = stores.cluster_info.identity.store_id;
        let (shards, hash) = stores.cluster_info.first_pool();
        (self.descriptor.shards, self.descriptor.hash) = (shards, hash.into());
        self.descriptor.addresses.clone_from(&self.addresses);
        self.server.set_peer_descriptor(self.descriptor.clone());
    }

    /// Sets the gateway. From then on, the node can accept messages that other nodes forward.
    pub(super) fn set_gateway(&self, gateway: &Arc<Gateway>) {
        // Cannot fail: it is set only here.
        let _ = self.peers.gateway.set(gateway.clone());
    }

    /// Returns a function that announces the current incarnation to other nodes, to be called after each
    /// registration.
    pub(super) fn on_registered(&self) -> Box<dyn Fn(&Member) + Send> {
        let (server, descriptor) = (self.server.clone(), self.descriptor.clone());
        Box::new(move |member| {
            let node =
                NodeDescriptor { incarnation: member.incarnation, ..descriptor.node.clone() };
            server.set_peer_descriptor(PeerDescriptor { node, ..descriptor.clone() });
        })
    }
}

/// Describes the node as far as is known before the store of another node is found.
fn descriptor(basis: &NodeBuilder, own: Option<&LocalStore>) -> PeerDescriptor {
    let config = &basis.config;
    let found = own.and_then(|own| own.cluster_info.as_ref());
    let node = NodeDescriptor {
        cluster: basis.cluster,
        store_id: found.map_or(0, |found| found.identity.store_id),
        node: basis.node.clone(),
        incarnation: Incarnation::default(),
    };
    let (shards, hash) = match found {
        Some(found) => {
            let (shards, hash) = found.first_pool();
            (shards, hash.into())
        }
        None => {
            (config.expected_shards.unwrap_or(0), config.expected_hash.clone().unwrap_or_default())
        }
    };
    let addresses = config.advertise.clone();
    PeerDescriptor {
        node,
        roles: config.roles(),
        shards,
        hash,
        addresses,
        format: format::newest().into(),
    }
}

/// The addresses at which others reach the node: `advertise`, or else the listening address.
fn announced(config: &Config, bound: SocketAddr) -> Vec<String> {
    if config.advertise.is_empty() && bound.ip().is_unspecified() {
        tracing::warn!(
            "other nodes cannot reach this one: it listens on {bound}; set `advertise` to an address that they can reach"
        );
    }
    match config.advertise.is_empty() {
        true => vec![bound.to_string()],
        false => config.advertise.clone(),
    }
}
