//! Words to other nodes: a link a node, on the control thread. What cannot be said now is forgotten: rows decide.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use ostraca_sharding::ids::NodeId;
use ostraca_sharding::node::Talk;
use ostraca_sharding::rows::Member;
use ostraca_wire::peer::calls::Calls;
use ostraca_wire::peer::{Alpn, PeerDialer, PeerLink, StreamKind};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The first byte of what is said: bumped when its shape changes.
const VERSION: u8 = 1;
/// Words that may wait for a link.
const QUEUE: usize = 1_024;
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
const ATTEMPT: Duration = Duration::from_secs(2);

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
        let mut body = vec![VERSION];
        let said = Said { from: me.clone(), talk: talk.clone() };
        match postcard::to_stdvec(&said) {
            Ok(bytes) => body.extend(bytes),
            Err(error) => return tracing::error!(%error, "something could not be said"),
        }
        if talker.words.try_send(body.into()).is_err() {
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
    let mut pause = PAUSE.0;
    loop {
        match connect(&dialer, &to, &addresses).await {
            Ok((calls, link)) => {
                pause = PAUSE.0;
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
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

async fn connect(
    dialer: &PeerDialer,
    to: &NodeId,
    addresses: &[String],
) -> Result<(Calls, PeerLink), String> {
    let mut last = "it announces no address".to_owned();
    for address in addresses {
        let attempt = async {
            let at: SocketAddr = crate::resolve(address).await?;
            let link = dialer
                .connect(at, Alpn::Control, Some(to.clone()))
                .await
                .map_err(|error| error.to_string())?;
            let calls = link.calls(StreamKind::Talk).await.map_err(|error| error.to_string())?;
            Ok::<_, String>((calls, link))
        };
        match tokio::time::timeout(ATTEMPT, attempt).await {
            Ok(Ok(made)) => return Ok(made),
            Ok(Err(error)) => last = format!("{address}: {error}"),
            Err(_) => last = format!("{address}: no answer within {ATTEMPT:?}"),
        }
    }
    Err(last)
}
