//! Control messages from other nodes, on their way to the node's state machine.
//!
//! The queue is bounded in messages and in bytes. Rows alone decide who owns a shard, so a message that does not
//! fit is dropped and counted: that only costs time, while unbounded memory could bring down the node. Inputs from
//! this node itself have a separate queue and are never dropped.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ostraca_config::config::ControlInboxLimits;
use ostraca_core::ids::NodeId;
use ostraca_core::node::ControlMessage;
use ostraca_core::rows::Member;
use ostraca_stats::Stats;
use tokio::sync::mpsc;

use super::message::{self, IgnoreReason};

/// Maximum number of kinds of ignored messages that are logged; limited because a peer chooses the kind numbers.
const KINDS_LOGGED: usize = 64;

/// The sending side. Clones share one queue.
#[derive(Clone)]
pub struct ControlInboxSender {
    queue: mpsc::Sender<InboxEntry>,
    bytes: Arc<AtomicUsize>,
    bounds: ControlInboxLimits,
    stats: Arc<Stats>,
    /// Keys of the ignored messages that have been logged.
    ignored: Arc<Mutex<BTreeSet<u64>>>,
}

/// The receiving side.
pub(crate) struct ControlInbox {
    queue: mpsc::Receiver<InboxEntry>,
    bytes: Arc<AtomicUsize>,
}

struct InboxEntry {
    from: Member,
    message: ControlMessage,
    bytes: usize,
}

/// Creates a queue with these limits; dropped messages are counted in `stats`.
pub(crate) fn control_inbox(
    bounds: ControlInboxLimits,
    stats: Arc<Stats>,
) -> (ControlInboxSender, ControlInbox) {
    let (sender, receiver) = mpsc::channel(bounds.messages.max(1));
    let bytes = Arc::new(AtomicUsize::new(0));
    let inbox = ControlInbox { queue: receiver, bytes: bytes.clone() };
    let ignored = Arc::default();
    (ControlInboxSender { queue: sender, bytes, bounds, stats, ignored }, inbox)
}

impl ControlInboxSender {
    /// Receives the bytes that the node `by` sent as a control message. A message that is not understood is counted
    /// and ignored. Does not block.
    pub fn receive(&self, by: &NodeId, body: &[u8]) {
        match message::decode(by, body) {
            Ok((from, message)) => self.put(from, message, body.len()),
            Err(why) => self.ignore(by, &why),
        }
    }

    /// Enqueues a message that arrived as `bytes` bytes, or drops it. Does not block.
    fn put(&self, from: Member, message: ControlMessage, bytes: usize) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before == 0 || before.saturating_add(bytes) <= self.bounds.bytes;
        if fits && self.queue.try_send(InboxEntry { from, message, bytes }).is_ok() {
            return;
        }
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Stats::count(&self.stats.control_messages_dropped);
        let ControlInboxLimits { messages, bytes } = self.bounds;
        tracing::debug!(
            "dropped a control message: the queue is limited to {messages} messages (`peers.control-messages`) and \
             {bytes} bytes (`peers.control-message-bytes`)"
        );
    }

    /// Counts a message that is not understood, and logs each kind once.
    fn ignore(&self, node: &NodeId, why: &IgnoreReason) {
        Stats::count(&self.stats.control_messages_ignored);
        let mut logged = self.ignored.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < KINDS_LOGGED && logged.insert(why.key()) {
            tracing::warn!(%node, %why, "ignored a control message; further ones of this kind are only counted");
        }
    }
}

impl ControlInbox {
    /// Returns the next message; `None` once all senders have been dropped.
    pub(crate) async fn next(&mut self) -> Option<(Member, ControlMessage)> {
        let InboxEntry { from, message, bytes } = self.queue.recv().await?;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some((from, message))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use ostraca_core::ids::Incarnation;

    use super::*;

    fn lost(stats: &Stats) -> u64 {
        Stats::get(&stats.control_messages_dropped)
    }

    fn member() -> Member {
        Member { node: "n1".into(), incarnation: Incarnation::default() }
    }

    #[test]
    fn every_ignored_message_is_counted() {
        let stats = Arc::<Stats>::default();
        let (sender, _inbox) = control_inbox(ControlInboxLimits::default(), stats.clone());
        for kind in [8, 8, 9, 8] {
            sender.ignore(&"n2".into(), &IgnoreReason::UnknownKind(kind));
        }
        assert_eq!(Stats::get(&stats.control_messages_ignored), 4);
        assert_eq!(
            sender.ignored.lock().expect("not poisoned").len(),
            2,
            "each kind is logged once"
        );
    }

    #[test]
    fn unread_control_messages_over_the_bounds_are_dropped() {
        let stats = Arc::<Stats>::default();
        let (sender, mut inbox) =
            control_inbox(ControlInboxLimits { messages: 3, bytes: 100 }, stats.clone());
        let put = |bytes| sender.put(member(), ControlMessage::Rebalance, bytes);
        (0..5).for_each(|_| put(1));
        assert_eq!(lost(&stats), 2, "three are queued");
        let mut receive = || inbox.next().now_or_never().flatten().is_some();
        assert!(receive() && receive() && receive() && !receive(), "the queued ones arrive");

        put(60);
        put(60);
        assert_eq!(lost(&stats), 3, "the second one exceeds the byte limit");
        put(40);
        assert_eq!(lost(&stats), 3);
        assert!(receive() && receive() && !receive());
        put(1_000);
        assert_eq!(lost(&stats), 3, "a large one fits an empty queue");
        put(1);
        assert_eq!(lost(&stats), 4);
        assert!(receive());
        put(100);
        assert_eq!(lost(&stats), 4, "all its bytes were released");
    }
}
