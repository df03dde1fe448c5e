//! Sends control messages: one link for each node, on the control thread. A message that cannot be sent now is
//! dropped: rows decide.

use std::collections::HashMap;

use bytes::Bytes;
use ostraca_core::ids::NodeId;
use ostraca_core::node::ControlMessage;
use ostraca_core::rows::Member;
use ostraca_gateway::dial::{self, Backoff};
use ostraca_wire::peer::rpc_client::RpcClient;
use ostraca_wire::peer::{Alpn, PeerDialer, PeerLink, StreamKind};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::message;

/// Messages that may wait for a link.
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

    /// A node's row gives its addresses and whether it is live.
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
            // Outdated news must not discard what waits for the current link.
            return;
        }
        let (words, outgoing) = mpsc::channel(QUEUE);
        let stop = CancellationToken::new();
        let (dialer, to) = (self.dialer.clone(), member.node.clone());
        let keeping = keep(dialer, to, addresses.clone(), outgoing);
        tokio::spawn(stop.clone().run_until_cancelled_owned(keeping));
        let (member, _keeper) = (member.clone(), stop.drop_guard());
        let link = ControlLink { member, addresses, outbox: words, _keeper };
        self.links.insert(link.member.node.clone(), link);
    }
}

async fn keep(
    dialer: PeerDialer,
    to: NodeId,
    addresses: Vec<String>,
    mut outgoing: mpsc::Receiver<Bytes>,
) {
    let mut pause = Backoff::default();
    loop {
        match connect(&dialer, &to, &addresses).await {
            Ok((calls, link)) => {
                pause.reset();
                loop {
                    tokio::select! {
                        _ = link.closed() => break,
                        () = calls.closed() => break,
                        words = outgoing.recv() => match words {
                            // It is sent now; delivery is not tracked.
                            Some(words) if message::version(&words) <= link.info.version => {
                                drop(calls.call(words));
                            }
                            Some(_) => tracing::debug!(
                                node = %to,
                                "control message not sent: the node's release does not support it"
                            ),
                            None => return,
                        },
                    }
                }
            }
            Err(error) => tracing::debug!(%error, node = %to, "no control link"),
        }
        pause.wait().await;
    }
}

async fn connect(
    dialer: &PeerDialer,
    to: &NodeId,
    addresses: &[String],
) -> Result<(RpcClient, PeerLink), String> {
    dial::connect_first(addresses, async |address| {
        let link = dialer.connect(address, Alpn::Control, Some(to.clone())).await?;
        let calls = link.open_rpc(StreamKind::Control).await?;
        Ok((calls, link))
    })
    .await
}
