//! Random sequences of events, checked against a model that knows the outcome of every attempt.
//!
//! After each event, the test checks that each message is in exactly one state, that counts and windows are as the
//! model predicts, and that the messages of each shard were sent in order. At the end every message has ended once,
//! marked in doubt if its abandoned attempts require it.

use std::collections::BTreeMap;

use super::super::*;
use super::member;

const SHARDS: u32 = 3;

/// A xorshift generator: small, and the same on every platform.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one_of(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// A pending attempt.
#[derive(Clone)]
struct Attempt {
    item: u32,
    to: Member,
    epoch: u64,
}

#[derive(Default)]
struct Item {
    shard: u32,
    bytes: usize,
    in_doubt: bool,
    gone: bool,
}

struct Model {
    router: Router<u32>,
    dice: Dice,
    now: u64,
    me: Option<Member>,
    epochs: BTreeMap<u32, u64>,
    /// Indexed by number, which is the order of arrival.
    items: Vec<Item>,
    live: BTreeMap<u64, Attempt>,
    last_tag: u64,
    refused: usize,
    resent: usize,
}

fn check(holds: bool, what: impl Into<String>) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.into()) }
}

impl Model {
    fn new(seed: u64, mutations: Vec<Mutation>) -> Self {
        let settings = Settings {
            buffered_messages: 12,
            buffered_bytes: 400,
            buffer_timeout: 2_000,
            link_messages: 4,
            link_bytes: 90,
            mutations,
            ..Settings::default()
        };
        Self {
            router: Router::new(settings, SHARDS),
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: 1,
            me: None,
            epochs: BTreeMap::new(),
            items: Vec::new(),
            live: BTreeMap::new(),
            last_tag: 0,
            refused: 0,
            resent: 0,
        }
    }

    fn member(&mut self) -> Member {
        match self.dice.below(4) {
            0 => member("me", self.dice.below(2)),
            1 => member("a", self.dice.below(2)),
            2 => member("b", 1),
            _ => member("c", 1),
        }
    }

    /// Marks matching attempts as abandoned: they may run unnoticed.
    fn abandon(&mut self, which: impl Fn(&Attempt, &Item) -> bool) {
        let items = &mut self.items;
        self.live.retain(|_, attempt| {
            let item = &mut items[attempt.item as usize];
            let abandoned = which(attempt, item);
            item.in_doubt |= abandoned;
            !abandoned
        });
    }

    fn raise_epoch(&mut self, shard: u32, epoch: u64) {
        let known = self.epochs.entry(shard).or_default();
        if epoch > *known {
            *known = epoch;
            self.abandon(|attempt, item| item.shard == shard && attempt.epoch < epoch);
        }
    }

    fn event(&mut self, out: &mut Vec<Action<u32>>) -> Result<(), String> {
        let now = self.now;
        match self.dice.below(20) {
            0..8 => {
                let shard = 1 + self.dice.below(u64::from(SHARDS)) as u32;
                let bytes = 1 + self.dice.below(60) as usize;
                let deadline = self.dice.one_of(3).then(|| now + self.dice.below(1_500));
                let number = u32::try_from(self.items.len()).expect("few items");
                self.items.push(Item { shard, bytes, ..Item::default() });
                self.router.route_into(now, ShardId(shard), number, bytes, deadline, out);
            }
            8..14 => return self.answer(out),
            14 | 15 => {
                let shard = 1 + self.dice.below(u64::from(SHARDS)) as u32;
                let epoch = (self.epoch_of(shard) + self.dice.below(3)).saturating_sub(1);
                let owner = (!self.dice.one_of(4)).then(|| self.member());
                let moving = self.dice.one_of(4);
                self.raise_epoch(shard, epoch);
                self.router.update_route(now, ShardId(shard), Epoch(epoch), owner, moving, out);
            }
            16 => {
                let shard = 1 + self.dice.below(u64::from(SHARDS)) as u32;
                let epoch = (self.epoch_of(shard) + self.dice.below(3)).saturating_sub(1);
                self.router.buffer_shard(now, ShardId(shard), Epoch(epoch));
            }
            17 => {
                let who = self.member();
                self.abandon(|attempt, _| attempt.to == who);
                self.router.on_link_lost(now, &who, out);
            }
            18 if self.dice.one_of(4) => {
                let me = (!self.dice.one_of(3)).then(|| member("me", self.dice.below(2)));
                if let Some(former) = self.me.take().filter(|former| Some(former) != me.as_ref()) {
                    self.abandon(|attempt, _| attempt.to == former);
                }
                self.me.clone_from(&me);
                self.router.set_local(now, me, out);
            }
            _ => {
                self.now += self.dice.below(400);
                self.router.tick(self.now, out);
            }
        }
        Ok(())
    }

    fn epoch_of(&self, shard: u32) -> u64 {
        self.epochs.get(&shard).copied().unwrap_or(0)
    }

    fn answer(&mut self, out: &mut Vec<Action<u32>>) -> Result<(), String> {
        let tag = match self.dice.one_of(4) {
            true => self.dice.below(self.last_tag + 2),
            false => {
                let live = self.live.len() as u64;
                let nth = if live == 0 { 0 } else { self.dice.below(live) };
                self.live.keys().nth(nth as usize).copied().unwrap_or(0)
            }
        };
        let verdict = match self.dice.below(8) {
            0 => AttemptResult::Rebalancing,
            1 => AttemptResult::NotSent,
            2 => {
                let epoch = Epoch(self.dice.below(self.last_tag / 4 + 2));
                AttemptResult::NotOwner { epoch, owner: self.dice.one_of(2).then(|| self.member()) }
            }
            _ => AttemptResult::Answered,
        };
        let ended = self.live.remove(&tag);
        if let (Some(attempt), AttemptResult::NotOwner { epoch, owner: Some(_) }) =
            (&ended, &verdict)
        {
            self.raise_epoch(self.items[attempt.item as usize].shard, epoch.0);
        }
        let done = verdict == AttemptResult::Answered;
        let given = self.router.on_attempt_result(self.now, tag, verdict, out);
        match (ended, given) {
            (Some(attempt), Some((item, in_doubt))) if done => {
                check(attempt.item == item, "the answer to another message")?;
                self.finish(item, in_doubt)
            }
            (Some(_), None) if done => Err(format!("the answer to {tag} was lost")),
            (_, Some(_)) => Err(format!("attempt {tag} ended without an answer")),
            (_, None) => Ok(()),
        }
    }

    fn finish(&mut self, item: u32, in_doubt: bool) -> Result<(), String> {
        let entry = &mut self.items[item as usize];
        check(!entry.gone, format!("message {item} ended twice"))?;
        check(
            entry.in_doubt == in_doubt,
            format!("message {item}: wrong flag in_doubt={in_doubt}"),
        )?;
        entry.gone = true;
        Ok(())
    }

    fn apply(&mut self, out: Vec<Action<u32>>) -> Result<(), String> {
        let mut last: BTreeMap<u32, u32> = BTreeMap::new();
        for step in out {
            let (to, epoch, tag, item) = match step {
                Action::Refuse { item, refusal } => {
                    self.refused += 1;
                    check(!self.is_live(item), format!("message {item} refused in flight"))?;
                    self.finish(item, refusal.in_doubt)?;
                    continue;
                }
                Action::Buffered => return Err("a buffered message was pushed".into()),
                Action::Remote { to, epoch, attempt_id: tag, item } => (to, epoch, tag, item),
                Action::Local { epoch, attempt_id: tag, item, .. } => {
                    (self.me.clone().ok_or("there is no incarnation here")?, epoch, tag, item)
                }
            };
            let Item { shard, gone, in_doubt, .. } = self.items[item as usize];
            check(!gone && !self.is_live(item), format!("message {item} is in two states"))?;
            check(epoch.0 >= self.epoch_of(shard), format!("the epoch of shard {shard} fell"))?;
            check(tag > self.last_tag, "a tag was used twice")?;
            check(last.insert(shard, item).is_none_or(|before| before < item), "out of order")?;
            self.last_tag = tag;
            self.resent += usize::from(in_doubt);
            self.live.insert(tag, Attempt { item, to, epoch: epoch.0 });
        }
        for (number, item) in self.items.iter().enumerate() {
            let overtaken = last.get(&item.shard).is_some_and(|last| number < *last as usize);
            let held = !item.gone && !self.is_live(number as u32);
            check(!(overtaken && held), format!("message {number} was overtaken"))?;
        }
        self.counts()
    }

    fn is_live(&self, item: u32) -> bool {
        self.live.values().any(|attempt| attempt.item == item)
    }

    fn counts(&self) -> Result<(), String> {
        let open = self.items.iter().filter(|item| !item.gone);
        let flying = || self.live.values().map(|attempt| &self.items[attempt.item as usize]);
        let all: usize = open.clone().map(|item| item.bytes).sum();
        let expected = RouterStats {
            buffered: open.count() - self.live.len(),
            buffered_bytes: all - flying().map(|item| item.bytes).sum::<usize>(),
            in_flight: self.live.len(),
        };
        let load = self.router.stats();
        check(load == expected, format!("{load:?}, expected {expected:?}"))?;
        check(
            load.buffered == 0 || self.router.next_wake().is_some(),
            "nothing wakes the buffered messages",
        )?;
        let mut links: BTreeMap<&Member, Vec<usize>> = BTreeMap::new();
        for attempt in self.live.values().filter(|attempt| Some(&attempt.to) != self.me.as_ref()) {
            links.entry(&attempt.to).or_default().push(self.items[attempt.item as usize].bytes);
        }
        let fits = |sizes: &Vec<usize>| sizes.len() <= 4 && sizes.iter().sum::<usize>() <= 90;
        check(links.values().all(fits), format!("a window exceeds its limit: {links:?}"))
    }

    /// The faults end: every shard has an owner that responds, and every message must end.
    fn recover(&mut self) -> Result<(), String> {
        for shard in 1..=SHARDS {
            let epoch = self.epoch_of(shard) + 1;
            self.raise_epoch(shard, epoch);
            let mut out = Vec::new();
            let owner = Some(member("c", 1));
            self.router.update_route(
                self.now,
                ShardId(shard),
                Epoch(epoch),
                owner,
                false,
                &mut out,
            );
            self.apply(out)?;
        }
        self.now += 2_000;
        let mut out = Vec::new();
        self.router.tick(self.now, &mut out);
        self.apply(out)?;
        while let Some((tag, attempt)) = self.live.pop_first() {
            let mut out = Vec::new();
            let given =
                self.router.on_attempt_result(self.now, tag, AttemptResult::Answered, &mut out);
            let (item, in_doubt) = given.ok_or("an answer was lost")?;
            check(item == attempt.item, "the answer to another message")?;
            self.finish(item, in_doubt)?;
            self.apply(out)?;
        }
        check(self.items.iter().all(|item| item.gone), "a message never ended")
    }
}

/// Runs one seed. Returns how many messages were refused, and how many were resent in doubt.
fn run(seed: u64, mutations: &[Mutation]) -> Result<(usize, usize), String> {
    let mut model = Model::new(seed, mutations.to_vec());
    for step in 0..250 {
        let mut out = Vec::new();
        let result = model.event(&mut out).and_then(|()| model.apply(out));
        result.map_err(|error| format!("seed {seed}, step {step}: {error}"))?;
    }
    model.recover().map_err(|error| format!("seed {seed}, at the end: {error}"))?;
    Ok((model.refused, model.resent))
}

#[test]
fn every_message_ends_once_in_order_with_its_in_doubt_flag() {
    let (mut refused, mut resent) = (0, 0);
    for seed in 1..=400 {
        let counts = run(seed, &[]).unwrap_or_else(|error| panic!("{error}"));
        refused += counts.0;
        resent += counts.1;
    }
    assert!(refused > 1_000 && resent > 1_000, "{refused} refused, {resent} resent");
}

#[test]
fn the_model_detects_each_disabled_rule() {
    for mutation in [Mutation::ForgetInDoubt, Mutation::DropBuffered, Mutation::AcceptLowerEpochs] {
        let seen = (1..=50).filter(|seed| run(*seed, &[mutation]).is_err()).count();
        assert!(seen > 25, "{mutation:?} was detected in {seen} of 50 runs");
    }
}
