//! Random damages to rows, and a node's machine that starts on rows in virtual time.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use ostraca_catalog::rows;
use ostraca_core::assign::BuiltinStrategy;
use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::message::Now;
use ostraca_core::node::{Action, Event, Machine, NodeIdentity, Settings, WriteError};
use ostraca_core::pools::Pools;
use ostraca_core::records::Claim;
use ostraca_core::rows::{Member, Roles, Row, RowKey};
use ostraca_store::StoredRow;

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed);
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// A row as it was damaged.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    /// What was done.
    #[allow(dead_code, reason = "shown if a seed fails")]
    pub(crate) how: &'static str,
    pub(crate) key: String,
    /// `None`: it is removed.
    pub(crate) value: Option<Bytes>,
}

/// Keys of rows that should not be there.
const EXTRA: [&str; 12] = [
    "nodes/n9",
    "nodes/n1/x",
    "shards/default/00001",
    "shards/default/00002",
    "shards/default/00777",
    "shards/other/00000",
    "types/default/counter/x",
    "manager/x",
    "pins",
    "placements/default",
    "placements/other",
    "numbers/other",
];

impl Damage {
    /// One to four damages. `earlier` are rows of an earlier time.
    pub(crate) fn some(
        random: &mut Random,
        found: &[StoredRow],
        earlier: &[StoredRow],
    ) -> Vec<Self> {
        let count = if random.below(3) == 0 { 2 + random.below(3) } else { 1 };
        (0..count).flat_map(|_| Self::one(random, found, earlier)).collect()
    }

    fn one(random: &mut Random, found: &[StoredRow], earlier: &[StoredRow]) -> Vec<Self> {
        let is_core = |row: &&StoredRow| rows::parse_key(&row.key).is_some();
        let (core, all): (Vec<_>, Vec<_>) =
            (found.iter().filter(is_core).collect(), found.iter().collect());
        let of = if random.below(4) > 0 { &core } else { &all };
        let row = *random.pick(of);
        let damage = |how, row: &StoredRow, value| Self { how, key: row.key.clone(), value };
        match random.below(7) {
            0 => vec![damage("removed", row, None)],
            1 => {
                let end = random.below(row.value.len().max(1));
                vec![damage("truncated", row, Some(row.value.slice(..end)))]
            }
            2 | 3 => vec![damage("bits flipped", row, Some(flipped(random, row)))],
            4 => {
                let other = *random.pick(of);
                vec![
                    damage("swapped", row, Some(other.value.clone())),
                    damage("swapped", other, Some(row.value.clone())),
                ]
            }
            5 => {
                let was = earlier.iter().find(|was| was.key == row.key);
                vec![damage("as before", row, was.map(|was| was.value.clone()))]
            }
            _ => {
                let key = (*random.pick(&EXTRA)).to_owned();
                let value = match random.below(2) {
                    0 => row.value.clone(),
                    _ => (0..random.below(40)).map(|_| random.next() as u8).collect(),
                };
                vec![Self { how: "extra", key, value: Some(value) }]
            }
        }
    }
}

/// Flips up to 8 bits. A text that is still a text says something else, which nobody can see: so the texts of types
/// lose their ends instead.
fn flipped(random: &mut Random, row: &StoredRow) -> Bytes {
    if row.value.is_empty() || row.key.starts_with("types/") {
        return row.value.slice(..row.value.len() / 2);
    }
    let mut value = row.value.to_vec();
    for _ in 0..=random.below(8) {
        let at = random.below(value.len());
        value[at] ^= 1 << random.below(8);
    }
    value.into()
}

/// Starts the machine of the node n1 on these rows, and waits until it is the manager, has sealed all rows, and serves
/// all shards under claims that the store grants.
///
/// # Errors
/// What is missing after a minute of virtual time.
pub(crate) fn cluster_of(
    found: Vec<(RowKey, Row, u64)>,
    claims: &BTreeMap<ShardId, Claim>,
    pools: Pools,
) -> Result<(), String> {
    let shards = pools.shard_count();
    let identity = NodeIdentity {
        node: "n1".into(),
        roles: Roles::ALL,
        version: 1,
        addresses: vec!["n1:1".into()],
        pool_roles: Vec::new(),
        weight: 1,
        pools,
        seed: 7,
    };
    let settings = Settings { embedded_store: true, ..Settings::default() };
    let machine = Machine::new(settings, identity, BuiltinStrategy::Average.build());
    let claims = claims.iter().map(|(shard, it)| (*shard, (it.epoch, it.owner.clone()))).collect();
    let revision = found.iter().map(|(.., at)| *at).max().unwrap_or(0);
    let rows = found.into_iter().map(|(key, row, at)| (key, (row, at))).collect();
    let mut alone = Alone { machine, rows, claims, revision, inbox: VecDeque::new() };
    let mut now = 1_000_000;
    for _ in 0..6_000 {
        now += 10;
        alone.run(now)?;
        if alone.machine.managing_term().is_some() && alone.missing(shards).is_none() {
            return Ok(());
        }
    }
    Err(alone.missing(shards).unwrap_or_else(|| "it is not the manager".into()))
}

/// A machine without others, and the store that it uses.
struct Alone {
    machine: Machine,
    rows: BTreeMap<RowKey, (Row, u64)>,
    claims: BTreeMap<ShardId, (Epoch, Member)>,
    revision: u64,
    inbox: VecDeque<Event>,
}

impl Alone {
    /// What a client would miss.
    fn missing(&self, shards: u32) -> Option<String> {
        let Some(me) = self.machine.member() else { return Some("it is not registered".into()) };
        let served: BTreeMap<_, _> = self.machine.held_shards().map(|it| (it.0, it)).collect();
        (1..=shards).map(ShardId).find_map(|shard| {
            let Some((_, epoch, true)) = served.get(&shard) else {
                return Some(format!("shard {shard} is not served"));
            };
            let is_claimed = self.claims.get(&shard) == Some(&(*epoch, me.clone()));
            (!is_claimed).then(|| format!("shard {shard} is not claimed"))
        })
    }

    fn run(&mut self, now: u64) -> Result<(), String> {
        self.inbox.push_back(Event::StoreResponded { sent_at: now });
        if self.machine.next_wake().is_some_and(|wake| wake <= now) {
            self.inbox.push_back(Event::Tick);
        }
        // The first actions precede all events.
        self.carry_out();
        for _ in 0..100_000 {
            let Some(event) = self.inbox.pop_front() else { return Ok(()) };
            self.machine.handle(Now { mono: now, cluster_time: now, utc: 0 }, event);
            self.carry_out();
        }
        Err("the machine never settles".into())
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.machine.poll() {
            let answer = self.answer(action);
            self.inbox.extend(answer);
        }
    }

    fn answer(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::ListRows => {
                let rows = self.rows.iter().map(|(key, (row, at))| (key.clone(), row.clone(), *at));
                Some(Event::RowsListed(Some(rows.collect())))
            }
            Action::ReadRow(key) => {
                let value = self.rows.get(&key).cloned();
                Some(Event::RowObserved { key, value })
            }
            Action::WriteRow { request_id, key, expected, row } => {
                let current = self.rows.get(&key).cloned();
                let result = if current.as_ref().map(|(_, at)| *at) == expected {
                    self.revision += 1;
                    let value = (row, self.revision);
                    self.rows.insert(key.clone(), value.clone());
                    self.inbox.push_back(Event::RowObserved { key, value: Some(value) });
                    Ok(self.revision)
                } else {
                    Err(WriteError::Conflict(current))
                };
                Some(Event::RowWritten { request_id, result })
            }
            Action::StartShard { shard, epoch, member } => {
                let current = self.claims.get(&shard).cloned();
                if let Some((claimed, owner)) = current
                    && (claimed > epoch || (claimed == epoch && owner != member))
                {
                    let current_epoch = Some(claimed);
                    return Some(Event::ShardLost { shard, epoch, current_epoch });
                }
                self.claims.insert(shard, (epoch, member));
                Some(Event::ShardServing { shard, epoch })
            }
            Action::StopShard { shard, epoch, .. } => Some(Event::ShardStopped { shard, epoch }),
            Action::ReadClaims { request_id, .. } => {
                Some(Event::ClaimsRead { request_id, claims: None })
            }
            _ => None,
        }
    }
}
