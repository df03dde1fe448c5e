//! What a node announces to other nodes, and what two nodes must agree on.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use ostraca_core::ids::NodeId;
use ostraca_core::rows::{Member, Roles};
use tokio_util::sync::CancellationToken;

use super::{NegotiatedLimits, PEER_PROTOCOL_VERSIONS, PeerInfo};
use crate::budget::Budgets;
use crate::close_code::CloseCode;
use crate::hello::{self, NodeDescriptor};
use crate::identity::{Principal, PrincipalKind};
use crate::limits::Limits;
use crate::proto::Hello;

/// Maximum number of addresses that a node may announce.
const ADDRESSES: usize = 16;
/// Maximum length in bytes of an address or of the hash's name.
const TEXT: usize = 255;

/// What a node announces about itself to other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerDescriptor {
    /// The part that clients see too. An incarnation of 0 means that the node has not registered yet (R7), and a store
    /// id of 0 that the store is not known yet.
    pub node: NodeDescriptor,
    /// The node's roles.
    pub roles: Roles,
    /// Number of shards of the pool `default`; 0 if not known yet.
    pub shards: u32,
    /// The hash that maps entities to shards; empty if not known yet.
    pub hash: String,
    /// The addresses at which the node accepts clients and nodes.
    pub addresses: Vec<String>,
    /// The highest record format that the node can read; 0 if not announced.
    pub format: u32,
}

impl From<NodeDescriptor> for PeerDescriptor {
    /// A descriptor with nothing else known.
    fn from(node: NodeDescriptor) -> Self {
        let (roles, hash, addresses) = (Roles::default(), String::new(), Vec::new());
        Self { node, roles, shards: 0, hash, addresses, format: 0 }
    }
}

impl PeerDescriptor {
    /// The hello to another node.
    #[must_use]
    pub fn hello(&self, limits: &Limits) -> Hello {
        Hello {
            limits: Some(limits.announced_to_peers()),
            roles: self.roles.names().map(str::to_owned).collect(),
            shards: self.shards,
            hash: self.hash.clone(),
            addresses: self.addresses.clone(),
            format: self.format,
            protocol_min: *PEER_PROTOCOL_VERSIONS.start(),
            protocol_max: *PEER_PROTOCOL_VERSIONS.end(),
            ..self.node.hello(limits)
        }
    }

    /// Returns the identity of the peer, or the code and reason with which to close the connection. The peer's
    /// certificate has been verified; here it must be a node's, and name the same node as the hello.
    pub(crate) fn negotiate(
        &self,
        theirs: Hello,
        certificate: &Principal,
        remote: SocketAddr,
        budgets: &Arc<Budgets>,
        stopping: CancellationToken,
    ) -> Result<PeerInfo, (CloseCode, String)> {
        let name = node_id_of(certificate)?;
        let version = hello::negotiate(PEER_PROTOCOL_VERSIONS, Some(self.node.cluster), &theirs)?;
        let bad = |text: String| Err((CloseCode::InvalidHello, text));
        if theirs.cluster_id.is_empty() {
            return bad("the hello does not name a cluster".into());
        }
        if theirs.node != *name.0 {
            let named: String = theirs.node.chars().take(100).collect();
            let text =
                format!("the certificate names node {name}, but the hello names node {named:?}");
            return Err((CloseCode::NodeMismatch, text));
        }
        let store = match <[u8; 16]>::try_from(&theirs.store_id[..]) {
            Ok(bytes) => u128::from_be_bytes(bytes),
            Err(_) => return bad(format!("store id is {} bytes", theirs.store_id.len())),
        };
        let long = theirs.addresses.iter().any(|address| address.len() > TEXT);
        if theirs.addresses.len() > ADDRESSES || long || theirs.hash.len() > TEXT {
            let text =
                format!("more than {ADDRESSES} addresses, or a text of more than {TEXT} bytes");
            return bad(text);
        }
        let own = &self.node.node;
        if self.shards != 0 && theirs.shards != 0 && self.shards != theirs.shards {
            let (ours, theirs) = (self.shards, theirs.shards);
            let text = format!("node {own} has {ours} shards, node {name} has {theirs}");
            return Err((CloseCode::ShardCountMismatch, text));
        }
        if !self.hash.is_empty() && !theirs.hash.is_empty() && self.hash != theirs.hash {
            let (ours, theirs) = (&self.hash, &theirs.hash);
            let text = format!("node {own} hashes with {ours:?}, node {name} with {theirs:?}");
            return Err((CloseCode::HashMismatch, text));
        }
        let incarnation = theirs.incarnation.unwrap_or_default().into();
        Ok(PeerInfo {
            member: Member { node: name, incarnation },
            roles: Roles::from_names(&theirs.roles),
            addresses: theirs.addresses,
            remote,
            store_id: store,
            shards: theirs.shards,
            hash: theirs.hash,
            format: theirs.format,
            version,
            software: theirs.software,
            limits: NegotiatedLimits::negotiate(
                budgets.limits(),
                &theirs.limits.unwrap_or_default(),
            ),
            budgets: Arc::clone(budgets),
            stopping,
        })
    }
}

/// The node that a certificate names.
pub(crate) fn node_id_of(certificate: &Principal) -> Result<NodeId, (CloseCode, String)> {
    match certificate.kind {
        PrincipalKind::Node => Ok(certificate.name.as_str().into()),
        PrincipalKind::Client => {
            Err((CloseCode::NodesOnly, format!("{certificate} is not a node")))
        }
    }
}

/// A node's descriptor, shared by all its hellos.
#[derive(Clone, Debug)]
pub(crate) struct SharedDescriptor(Arc<RwLock<PeerDescriptor>>);

impl SharedDescriptor {
    pub(crate) fn new(descriptor: PeerDescriptor) -> Self {
        Self(Arc::new(RwLock::new(descriptor)))
    }

    pub(crate) fn now(&self) -> PeerDescriptor {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut PeerDescriptor)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::{ClusterId, Incarnation};

    use super::*;

    fn descriptor(name: &str) -> PeerDescriptor {
        let node = NodeDescriptor {
            cluster: ClusterId(1),
            store_id: 2,
            node: name.into(),
            incarnation: Incarnation { counter: 3, nonce: 4 },
        };
        let roles = Roles { store: true, host: true, ..Roles::default() };
        let addresses = vec!["127.0.0.1:1".to_owned()];
        PeerDescriptor { node, roles, shards: 256, hash: "murmur3".into(), addresses, format: 5 }
    }

    fn agree(theirs: Hello) -> Result<PeerInfo, (CloseCode, String)> {
        let two =
            Principal { cluster: ClusterId(1), kind: PrincipalKind::Node, name: "two".into() };
        let remote = SocketAddr::from(([127, 0, 0, 1], 9));
        let stopping = CancellationToken::new();
        descriptor("one").negotiate(
            theirs,
            &two,
            remote,
            &Budgets::new(&Limits::default()),
            stopping,
        )
    }

    fn hello(change: impl FnOnce(&mut Hello)) -> Hello {
        let mut hello = descriptor("two").hello(&Limits::default());
        change(&mut hello);
        hello
    }

    #[test]
    fn a_hello_carries_the_whole_peer_descriptor() {
        let info = agree(hello(|_| {})).expect("agreed");
        let own = descriptor("two");
        assert_eq!(info.member.node, own.node.node);
        assert_eq!(info.member.incarnation, own.node.incarnation);
        assert_eq!((info.roles, info.store_id, info.format), (own.roles, 2, 5));
        assert_eq!(info.version, *PEER_PROTOCOL_VERSIONS.end());
        assert_eq!((info.shards, info.hash, info.addresses), (256, own.hash, own.addresses));
    }

    #[test]
    fn mismatches_are_refused_and_unknown_values_are_not() {
        type Change = fn(&mut Hello);
        let cases: [(Change, CloseCode, [&str; 2]); 5] = [
            (|h| h.shards = 128, CloseCode::ShardCountMismatch, ["256", "128"]),
            (|h| h.hash = "java".into(), CloseCode::HashMismatch, ["murmur3", "java"]),
            (|h| h.node = "three".into(), CloseCode::NodeMismatch, ["two", "three"]),
            (|h| h.protocol_min = 7, CloseCode::UnsupportedProtocol, ["2 to 2", "7 to 2"]),
            (
                |h| h.cluster_id = 9_u128.to_be_bytes().to_vec().into(),
                CloseCode::ClusterMismatch,
                ["00000000000000000000000000000001", "00000000000000000000000000000009"],
            ),
        ];
        for (change, code, texts) in cases {
            let (found, text) = agree(hello(change)).expect_err("refused");
            assert_eq!(found, code);
            assert!(texts.iter().all(|part| text.contains(part)), "{text}");
        }
        agree(hello(|h| (h.shards, h.hash) = (0, String::new()))).expect("not known yet");
    }

    #[test]
    fn two_releases_use_their_highest_common_version() {
        let newer = agree(hello(|h| h.protocol_max = 9)).expect("they overlap");
        assert_eq!(newer.version, *PEER_PROTOCOL_VERSIONS.end());
        // Version 1 was never released.
        let old = agree(hello(|h| (h.protocol_min, h.protocol_max) = (1, 1)));
        let (code, text) = old.expect_err("refused");
        assert_eq!(code, CloseCode::UnsupportedProtocol);
        assert!(text.contains("2 to 2") && text.contains("1 to 1"), "{text}");
    }

    #[test]
    fn a_malformed_node_hello_is_refused() {
        type Change = fn(&mut Hello);
        let changes: [Change; 4] = [
            |h| h.cluster_id.clear(),
            |h| h.store_id.truncate(3),
            |h| h.addresses = vec![String::new(); ADDRESSES + 1],
            |h| h.hash = "h".repeat(TEXT + 1),
        ];
        for change in changes {
            assert_eq!(agree(hello(change)).expect_err("refused").0, CloseCode::InvalidHello);
        }
    }
}
