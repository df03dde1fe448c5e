//! Words to other nodes: a link a node, on the control thread. What cannot be said now is forgotten: rows decide.

use std::collections::HashMap;

use bytes::Bytes;
use ostraca_sharding::ids::NodeId;
use ostraca_sharding::node::Talk;
use ostraca_sharding::rows::Member;
use ostraca_wire::peer::calls::Calls;
use ostraca_wire::peer::{Alpn, PeerDialer, PeerLink, StreamKind};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::reach::{self, Pause};

/// The first byte of what is said: bumped when its shape changes.
const VERSION: u8 = 1;
/// Words that may wait for a link.
const QUEUE: usize = 1_024;

/// One thing said: by whom, since a link may be older than the life that speaks.
#[derive(Serialize, Deserialize)]
struct Said {
    from: Member,
    talk: Talk,
}

/// What was said, by the node `by`; none if it is not understood or says that it is another node.
pub(crate) fn heard(by: &NodeId, body: &[u8]) -> Option<(Member, Talk)> {
    let (&version, body) = body.split_first()?;
    let said: Said = (version == VERSION).then(|| postcard::from_bytes(body).ok())??;
    (said.from.node == *by).then_some((said.from, said.talk))
}

/// How a word lies in a frame.
fn said(from: &Member, talk: &Talk) -> Result<Bytes, postcard::Error> {
    let mut body = vec![VERSION];
    body.extend(postcard::to_stdvec(&Said { from: from.clone(), talk: talk.clone() })?);
    Ok(body.into())
}

struct Talker {
    member: Member,
    addresses: Vec<String>,
    words: mpsc::Sender<Bytes>,
    _keeper: DropGuard,
}

pub(super) struct Talkers {
    dialer: PeerDialer,
    talkers: HashMap<NodeId, Talker>,
}

impl Talkers {
    pub(super) fn new(dialer: PeerDialer) -> Self {
        Self { dialer, talkers: HashMap::new() }
    }

    pub(super) fn say(&self, to: &NodeId, me: &Member, talk: &Talk) {
        let Some(talker) = self.talkers.get(to) else { return };
        let body = match said(me, talk) {
            Ok(body) => body,
            Err(error) => return tracing::error!(%error, "something could not be said"),
        };
        if talker.words.try_send(body).is_err() {
            tracing::debug!(node = %to, "a word was lost: its link is full or gone");
        }
    }

    /// A node's row says where it is, and whether it lives.
    pub(super) fn node(&mut self, member: &Member, alive: bool, addresses: Vec<String>) {
        if !alive {
            let ends =
                |known: &Talker| known.member.incarnation.counter <= member.incarnation.counter;
            if self.talkers.get(&member.node).is_some_and(ends) {
                self.talkers.remove(&member.node);
            }
            return;
        }
        let same = |known: &Talker| known.member == *member && known.addresses == addresses;
        if self.talkers.get(&member.node).is_some_and(same) {
            // What waits for its link is not thrown away over old news.
            return;
        }
        let (words, said) = mpsc::channel(QUEUE);
        let stop = CancellationToken::new();
        let (dialer, to) = (self.dialer.clone(), member.node.clone());
        let keeping = keep(dialer, to, addresses.clone(), said);
        tokio::spawn(stop.clone().run_until_cancelled_owned(keeping));
        let (member, _keeper) = (member.clone(), stop.drop_guard());
        let talker = Talker { member, addresses, words, _keeper };
        self.talkers.insert(talker.member.node.clone(), talker);
    }
}

async fn keep(
    dialer: PeerDialer,
    to: NodeId,
    addresses: Vec<String>,
    mut said: mpsc::Receiver<Bytes>,
) {
    let mut pause = Pause::new();
    loop {
        match connect(&dialer, &to, &addresses).await {
            Ok((calls, link)) => {
                pause.stood();
                loop {
                    tokio::select! {
                        _ = link.closed() => break,
                        () = calls.closed() => break,
                        words = said.recv() => match words {
                            // It is sent now; whether it comes is not asked.
                            Some(words) => drop(calls.call(words)),
                            None => return,
                        },
                    }
                }
            }
            Err(error) => tracing::debug!(%error, node = %to, "no control link"),
        }
        pause.pass().await;
    }
}

async fn connect(
    dialer: &PeerDialer,
    to: &NodeId,
    addresses: &[String],
) -> Result<(Calls, PeerLink), String> {
    reach::first(addresses, async |address| {
        let link = dialer.connect(address, Alpn::Control, Some(to.clone())).await?;
        let calls = link.calls(StreamKind::Talk).await?;
        Ok((calls, link))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_sharding::ids::{Epoch, Incarnation, ShardId};
    use ostraca_sharding::node::{Held, Report};

    #[test]
    fn what_is_said_has_golden_bytes_and_is_believed_of_nobody_else() {
        let from =
            Member { node: "n1".into(), incarnation: Incarnation { counter: 3, nonce: 200 } };
        let report = Report {
            incarnation: from.incarnation,
            seen: vec![(0, 7)],
            held: vec![Held { shard: ShardId(5), epoch: Epoch(2), serving: true }],
            store_answers: true,
            refused: Vec::new(),
        };
        let talk = Talk::Report(Box::new(report));
        let bytes = said(&from, &talk).expect("said");
        let golden = [1, 2, b'n', b'1', 3, 200, 1, 5, 3, 200, 1, 1, 0, 7, 1, 5, 2, 1, 1, 0];
        assert_eq!(bytes.as_ref(), golden);
        assert_eq!(heard(&"n1".into(), &bytes), Some((from, talk)));
        assert_eq!(heard(&"n2".into(), &bytes), None, "its certificate says who it is");
        let newer: Vec<u8> = [&[VERSION + 1], &bytes[1..]].concat();
        assert_eq!(heard(&"n1".into(), &newer), None);
        assert_eq!(heard(&"n1".into(), &bytes[..9]), None);
        assert_eq!(heard(&"n1".into(), &[]), None);
    }
}
