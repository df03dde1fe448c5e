//! What a node says of itself to other nodes, and what two nodes must agree in.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use ostraca_core::ids::{Incarnation, NodeId};
use ostraca_core::rows::{Member, Roles};
use tokio_util::sync::CancellationToken;

use super::{Bounds, PeerInfo, VERSIONS};
use crate::budget::Budgets;
use crate::code::Code;
use crate::hello::{self, NodeFacts};
use crate::identity::{Principal, Role};
use crate::limits::Limits;
use crate::proto::Hello;

/// Addresses that a node may announce.
const ADDRESSES: usize = 16;
/// Bytes of one of them, and of the hash's name.
const TEXT: usize = 255;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What clients hear too. An incarnation of 0 stands for a life that has not registered yet (R7), and
    /// a store of 0 for one that has not been seen yet.
    pub node: NodeFacts,
    /// What it does.
    pub roles: Roles,
    /// Shards of the pool `default`; 0: not known yet.
    pub shards: u32,
    /// The hash that puts entities into shards; empty: not known yet.
    pub hash: String,
    /// Where it takes clients and nodes.
    pub addresses: Vec<String>,
    /// The highest format of records that it reads; 0: not said.
    pub format: u32,
}

impl From<NodeFacts> for Facts {
    /// A node of which only that is known.
    fn from(node: NodeFacts) -> Self {
        let (roles, hash, addresses) = (Roles::default(), String::new(), Vec::new());
        Self { node, roles, shards: 0, hash, addresses, format: 0 }
    }
}

impl Facts {
    /// The hello to another node.
    #[must_use]
    pub fn hello(&self, limits: &Limits) -> Hello {
        Hello {
            limits: Some(limits.announced_to_peers()),
            roles: names(self.roles).map(str::to_owned).collect(),
            shards: self.shards,
            hash: self.hash.clone(),
            addresses: self.addresses.clone(),
            format: self.format,
            protocol_min: *VERSIONS.start(),
            protocol_max: *VERSIONS.end(),
            ..self.node.hello(limits)
        }
    }

    /// Who the other side is, or with which code and reason the connection is closed. Its certificate has
    /// been checked; here it must be a node's, and that of the node that says hello.
    pub(crate) fn agree(
        &self,
        theirs: Hello,
        certificate: &Principal,
        remote: SocketAddr,
        budgets: &Arc<Budgets>,
        stopping: CancellationToken,
    ) -> Result<PeerInfo, (Code, String)> {
        let name = is_node(certificate)?;
        let version = hello::agree(VERSIONS, Some(self.node.cluster), &theirs)?;
        let bad = |text: String| Err((Code::BadHello, text));
        if theirs.cluster_id.is_empty() {
            return bad("a node says of which cluster it is".into());
        }
        if theirs.node != *name.0 {
            let said: String = theirs.node.chars().take(100).collect();
            let text = format!("the certificate is node {name}'s, the hello node {said:?}'s");
            return Err((Code::OtherNode, text));
        }
        let store = match <[u8; 16]>::try_from(&theirs.store_id[..]) {
            Ok(bytes) => u128::from_be_bytes(bytes),
            Err(_) => return bad(format!("a store id of {} bytes", theirs.store_id.len())),
        };
        let long = theirs.addresses.iter().any(|address| address.len() > TEXT);
        if theirs.addresses.len() > ADDRESSES || long || theirs.hash.len() > TEXT {
            let text =
                format!("more than {ADDRESSES} addresses, or texts of more than {TEXT} bytes");
            return bad(text);
        }
        let own = &self.node.node;
        if self.shards != 0 && theirs.shards != 0 && self.shards != theirs.shards {
            let (ours, theirs) = (self.shards, theirs.shards);
            let text = format!("node {own} has {ours} shards, node {name} has {theirs}");
            return Err((Code::OtherShardCount, text));
        }
        if !self.hash.is_empty() && !theirs.hash.is_empty() && self.hash != theirs.hash {
            let (ours, theirs) = (&self.hash, &theirs.hash);
            let text = format!("node {own} hashes with {ours:?}, node {name} with {theirs:?}");
            return Err((Code::OtherHash, text));
        }
        let life = theirs.incarnation.unwrap_or_default();
        let incarnation = Incarnation { counter: life.counter, nonce: life.nonce };
        Ok(PeerInfo {
            member: Member { node: name, incarnation },
            roles: roles(&theirs.roles),
            addresses: theirs.addresses,
            remote,
            store,
            shards: theirs.shards,
            hash: theirs.hash,
            format: theirs.format,
            version,
            software: theirs.software,
            bounds: Bounds::agreed(budgets.limits(), &theirs.limits.unwrap_or_default()),
            budgets: Arc::clone(budgets),
            stopping,
        })
    }
}

/// The node that a certificate names.
pub(crate) fn is_node(certificate: &Principal) -> Result<NodeId, (Code, String)> {
    match certificate.role {
        Role::Node => Ok(certificate.name.as_str().into()),
        Role::Client => Err((Code::NodesOnly, format!("{certificate} is no node"))),
    }
}

fn names(roles: Roles) -> impl Iterator<Item = &'static str> {
    let Roles { store, manager, host, gateway } = roles;
    let all = [(store, "store"), (manager, "manager"), (host, "host"), (gateway, "gateway")];
    all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name)
}

fn roles(names: &[String]) -> Roles {
    let has = |role: &str| names.iter().any(|name| name == role);
    Roles {
        store: has("store"),
        manager: has("manager"),
        host: has("host"),
        gateway: has("gateway"),
    }
}

/// A node's facts, where all its hellos read them.
#[derive(Clone, Debug)]
pub(crate) struct SharedFacts(Arc<RwLock<Facts>>);

impl SharedFacts {
    pub(crate) fn new(facts: Facts) -> Self {
        Self(Arc::new(RwLock::new(facts)))
    }

    pub(crate) fn now(&self) -> Facts {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::ClusterId;

    use super::*;

    fn facts(name: &str) -> Facts {
        let node = NodeFacts {
            cluster: ClusterId(1),
            store: 2,
            node: name.into(),
            incarnation: Incarnation { counter: 3, nonce: 4 },
        };
        let roles = Roles { store: true, host: true, ..Roles::default() };
        let addresses = vec!["127.0.0.1:1".to_owned()];
        Facts { node, roles, shards: 256, hash: "murmur3".into(), addresses, format: 5 }
    }

    fn agree(theirs: Hello) -> Result<PeerInfo, (Code, String)> {
        let two = Principal { cluster: ClusterId(1), role: Role::Node, name: "two".into() };
        let remote = SocketAddr::from(([127, 0, 0, 1], 9));
        let stopping = CancellationToken::new();
        facts("one").agree(theirs, &two, remote, &Budgets::new(&Limits::default()), stopping)
    }

    fn hello(change: impl FnOnce(&mut Hello)) -> Hello {
        let mut hello = facts("two").hello(&Limits::default());
        change(&mut hello);
        hello
    }

    #[test]
    fn what_a_node_says_is_what_the_other_one_knows() {
        let info = agree(hello(|_| {})).expect("agreed");
        let own = facts("two");
        assert_eq!(info.member.node, own.node.node);
        assert_eq!(info.member.incarnation, own.node.incarnation);
        assert_eq!((info.roles, info.store, info.format), (own.roles, 2, 5));
        assert_eq!(info.version, *VERSIONS.end());
        assert_eq!((info.shards, info.hash, info.addresses), (256, own.hash, own.addresses));
    }

    #[test]
    fn what_differs_is_refused_with_both_values_and_what_is_not_known_yet_is_not() {
        type Change = fn(&mut Hello);
        let cases: [(Change, Code, [&str; 2]); 5] = [
            (|h| h.shards = 128, Code::OtherShardCount, ["256", "128"]),
            (|h| h.hash = "java".into(), Code::OtherHash, ["murmur3", "java"]),
            (|h| h.node = "three".into(), Code::OtherNode, ["two", "three"]),
            (|h| h.protocol_min = 7, Code::UnsupportedProtocol, ["2 to 2", "7 to 2"]),
            (
                |h| h.cluster_id = 9_u128.to_be_bytes().to_vec().into(),
                Code::OtherCluster,
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
    fn two_releases_speak_the_highest_version_that_both_have() {
        let newer = agree(hello(|h| h.protocol_max = 9)).expect("they overlap");
        assert_eq!(newer.version, *VERSIONS.end());
        // Before the first release.
        let old = agree(hello(|h| (h.protocol_min, h.protocol_max) = (1, 1)));
        let (code, text) = old.expect_err("refused");
        assert_eq!(code, Code::UnsupportedProtocol);
        assert!(text.contains("2 to 2") && text.contains("1 to 1"), "{text}");
    }

    #[test]
    fn a_hello_that_is_no_nodes_is_refused() {
        type Change = fn(&mut Hello);
        let changes: [Change; 4] = [
            |h| h.cluster_id.clear(),
            |h| h.store_id.truncate(3),
            |h| h.addresses = vec![String::new(); ADDRESSES + 1],
            |h| h.hash = "h".repeat(TEXT + 1),
        ];
        for change in changes {
            assert_eq!(agree(hello(change)).expect_err("refused").0, Code::BadHello);
        }
    }
}
