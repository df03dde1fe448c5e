//! Sends control messages: one link per node, on the control thread. A message that cannot be sent now is dropped,
//! because rows decide.

use std::collections::HashMap;

use bytes::Bytes;
use ostraca_core::ids::NodeId;
use ostraca_core::node::ControlMessage;
use ostraca_core::rows::Member;
use ostraca_wire::peer::rpc_client::RpcClient;
use ostraca_wire::peer::{Alpn, PeerDialer, PeerLink, StreamKind};
use ostraca_wire::reconnect::{BackoffPolicy, Reconnect, connect_first, keep_up};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::message;

/// Maximum number of messages queued for a link.
const QUEUE: usize = 1_024;

struct ControlLink {
    member: Member,
    addresses: Vec<String>,
    outbox: mpsc::Sender<Bytes>,
    _keeper: DropGuard,
}

pub(super) struct ControlLinks {
    dialer: PeerDialer,
    links: HashMap<NodeId, ControlLink>,
}

impl ControlLinks {
    pub(super) fn new(dialer: PeerDialer) -> Self {
        Self { dialer, links: HashMap::new() }
    }

    pub(super) fn send(&self, to: &NodeId, me: &Member, message: &ControlMessage) {
        let Some(link) = self.links.get(to) else { return };
        let body = match message::encode(me, message) {
            Ok(body) => body,
            Err(error) => return tracing::error!(%error, "failed to encode a control message"),
        };
        if link.outbox.try_send(body).is_err() {
            tracing::debug!(node = %to, "dropped a control message: the link is full or down");
        }
    }

    /// Updates a node's link from the node's row, which gives its addresses and whether it is live.
    pub(super) fn update_node(&mut self, member: &Member, alive: bool, addresses: Vec<String>) {
        if !alive {
            let ends = |known: &ControlLink| {
                known.member.incarnation.counter <= member.incarnation.counter
            };
            if self.links.get(&member.node).is_some_and(ends) {
                self.links.remove(&member.node);
            }
            return;
        }
        let same = |known: &ControlLink| known.member == *member && known.addresses == addresses;
        if self.links.get(&member.node).is_some_and(same) {
            // An outdated row must not discard the messages queued for the current link.
            return;
        }
        let (outbox, outgoing) = mpsc::channel(QUEUE);
        let stop = CancellationToken::new();
        let keeper = Keeper {
            dialer: self.dialer.clone(),
            to: member.node.clone(),
            addresses: addresses.clone(),
            outgoing,
        };
        let kept = keep_up(None, BackoffPolicy::PEERS, keeper);
        tokio::spawn(stop.clone().run_until_cancelled_owned(kept));
        let (member, _keeper) = (member.clone(), stop.drop_guard());
        let link = ControlLink { member, addresses, outbox, _keeper };
        self.links.insert(link.member.node.clone(), link);
    }
}

/// Maintains one link.
struct Keeper {
    dialer: PeerDialer,
    to: NodeId,
    addresses: Vec<String>,
    outgoing: mpsc::Receiver<Bytes>,
}

impl Reconnect for Keeper {
    type Link = (RpcClient, PeerLink);
    type Error = String;

    async fn connect(&mut self) -> Result<Self::Link, String> {
        connect_first(&self.addresses, async |address| {
            let link = self.dialer.connect(address, Alpn::Control, Some(self.to.clone())).await?;
            let calls = link.open_rpc(StreamKind::Control).await?;
            Ok((calls, link))
        })
        .await
    }

    async fn serve(&mut self, (calls, link): Self::Link) {
        // Made once: it checks the peer's certificate when it begins.
        let mut closed = std::pin::pin!(link.closed());
        loop {
            tokio::select! {
                _ = &mut closed => return,
                () = calls.closed() => return,
                message = self.outgoing.recv() => match message {
                    // Sent immediately; delivery is not tracked.
                    Some(body) if message::version(&body) <= link.info.version => {
                        drop(calls.call(body));
                    }
                    Some(_) => tracing::debug!(
                        node = %self.to,
                        "control message not sent: the node's release does not support it"
                    ),
                    // The link is being dropped, and this task with it.
                    None => std::future::pending().await,
                },
            }
        }
    }

    fn failed(&mut self, error: String) {
        tracing::debug!(%error, node = %self.to, "no control link");
    }
}
