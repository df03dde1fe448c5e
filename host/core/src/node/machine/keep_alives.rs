//! Keep-alives between members, and how many in a row each member has left unanswered (E12).
//!
//! Only members count whose rows show that their release answers them. The count does not rise while a member's lease is
//! silent too: it then ends by the lapse of its lease (R8), and needs no arbitration.

use std::collections::BTreeMap;

use super::context::Context;
use super::observed::ObservedCluster;
use crate::ids::{Incarnation, NodeId};
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;
use crate::node::ControlMessage;
use crate::rows::Member;

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct KeepAlives {
    peers: BTreeMap<NodeId, Peer>,
    /// When the next round is due.
    next_at: u64,
}

#[derive(Clone, Copy, Debug, Hash)]
struct Peer {
    incarnation: Incarnation,
    /// The number of the last keep-alive that was sent, and of the last one that was answered or no longer counts.
    sent: u64,
    answered: u64,
}

impl Peer {
    /// How many were not answered within the interval: the last one may still be.
    fn failures(&self) -> u64 {
        (self.sent - self.answered).saturating_sub(1)
    }
}

impl KeepAlives {
    /// Sends a round if one is due.
    pub(super) fn drive(&mut self, context: &mut Context, observed: &ObservedCluster) {
        let Some(interval) = context.settings.keep_alive_interval else { return };
        let now = context.mono();
        if now < self.next_at {
            return;
        }
        self.next_at = now + interval;
        let me = &context.identity.node;
        let members: BTreeMap<_, _> = observed
            .all_live()
            .filter(|(node, row)| *node != me && row.answers_keep_alives())
            .map(|(node, row)| (node.clone(), row.incarnation))
            .collect();
        self.peers.retain(|node, peer| members.get(node) == Some(&peer.incarnation));
        for (node, to) in members {
            let first = Peer { incarnation: to, sent: 0, answered: 0 };
            let peer = self.peers.entry(node.clone()).or_insert(first);
            peer.sent += 1;
            if !observed.is_renewing(&node, now) {
                peer.answered += 1;
            }
            context.send(&node, ControlMessage::KeepAlive { to, number: peer.sent });
        }
    }

    pub(super) fn on_ack(&mut self, from: &Member, number: u64) {
        if let Some(peer) = self.peers.get_mut(&from.node)
            && peer.incarnation == from.incarnation
            && number <= peer.sent
        {
            peer.answered = peer.answered.max(number);
        }
    }

    /// Counts from zero again.
    pub(super) fn restart(&mut self) {
        for peer in self.peers.values_mut() {
            peer.answered = peer.sent;
        }
    }

    /// Members that left the last keep-alives unanswered, and how many.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = (Member, u64)> {
        let member = |node: &NodeId, peer: &Peer| Member {
            node: node.clone(),
            incarnation: peer.incarnation,
        };
        let counts =
            self.peers.iter().map(move |(node, peer)| (member(node, peer), peer.failures()));
        counts.filter(|(_, failures)| *failures > 0)
    }

    /// Whether an incarnation has left so many keep-alives unanswered that it counts as unreachable.
    pub(super) fn is_unreachable(&self, context: &Context, member: &Member) -> bool {
        self.peers.get(&member.node).is_some_and(|peer| {
            peer.incarnation == member.incarnation
                && peer.failures() >= u64::from(context.settings.keep_alive_failures)
        })
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        self.next_at = to.map_deadline(self.next_at);
        for peer in self.peers.values_mut() {
            (peer.sent, peer.answered) = (peer.sent - peer.answered, 0);
        }
    }
}
