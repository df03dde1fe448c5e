//! Channels in the simulated clusters: what guests emit, and the check that each subscriber gets every item once, in
//! order, and only items of turns that took effect (R3).

use std::collections::BTreeSet;

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::records::ChannelCursor;
use ostraca_core::shard::{ChannelKeep, ChannelPage, ChannelPosition, Emit, Lost};

use crate::rng::Rng;
use crate::store::Image;
use crate::violation::{Violation, ViolationKind};

/// The only channel.
pub(crate) const CHANNEL: &str = "c";

/// What channels keep in the run of a seed: nothing, a few items, or all of them.
pub(crate) fn keep(seed: u64) -> ChannelKeep {
    let items = [0, 6, 100_000][(seed / 7 % 3) as usize];
    ChannelKeep { items, bytes: 1 << 30 }
}

/// The items that a turn emits: up to two, each with the turn's id.
pub(crate) fn by_turn(rng: &mut Rng, turn: TurnId) -> Vec<Emit> {
    let data = Bytes::from(codec::encode(&turn).unwrap_or_default());
    let emit = || Emit { channel: CHANNEL.into(), data: data.clone() };
    (0..rng.range(0, 3)).map(|_| emit()).collect()
}

/// A subscriber.
#[derive(Clone, Debug)]
pub(crate) struct Subscriber {
    pub(crate) entity: Entity,
    pub(crate) position: ChannelPosition,
    /// Counts its reads; the answer to an earlier one is ignored.
    pub(crate) read: u64,
    /// Whether the last read was answered.
    pub(crate) is_answered: bool,
    /// What it has got: versions and turns.
    seen: BTreeSet<(u64, TurnId)>,
    pub(crate) items: u64,
    pub(crate) lost: u64,
}

impl Subscriber {
    pub(crate) fn new(entity: Entity, position: ChannelPosition) -> Self {
        let (read, is_answered, seen) = (0, true, BTreeSet::new());
        Self { entity, position, read, is_answered, seen, items: 0, lost: 0 }
    }

    /// Takes a page. Returns what is wrong with it.
    pub(crate) fn take(&mut self, page: &ChannelPage) -> Option<Violation> {
        let before = match self.position {
            ChannelPosition::After(cursor) => Some(cursor),
            _ => None,
        };
        let wrong = |why: String| {
            let text = format!("{} from {before:?}: {why}: {page:?}", self.entity);
            Some(ViolationKind::ChannelWrong.because(text))
        };
        let lost = match page.lost {
            Lost::Nothing => 0,
            Lost::Items(lost) => lost,
            // The entity was deleted: its numbers begin anew.
            Lost::Unknown if before.is_some_and(|it| page.next.generation > it.generation) => {
                self.position = ChannelPosition::Oldest;
                let page = ChannelPage { lost: Lost::Nothing, ..page.clone() };
                return self.take(&page);
            }
            Lost::Unknown => return wrong("an unknown number is lost".into()),
        };
        if before.is_none() && lost > 0 {
            return wrong("something is lost before the first read".into());
        }
        let mut last = before;
        if let Some(last) = &mut last {
            last.number += lost;
        }
        for item in &page.items {
            if let Some(last) = last {
                if item.number != last.number + 1 {
                    return wrong(format!("item {} follows {}", item.number, last.number));
                }
                if item.version < last.version {
                    return wrong(format!("item {} is of an earlier version", item.number));
                }
            }
            let Ok(turn) = codec::decode::<TurnId>(&item.data) else {
                return wrong("an item is damaged".into());
            };
            self.seen.insert((item.version, turn));
            let (version, number) = (item.version, item.number);
            let generation = page.next.generation;
            last = Some(ChannelCursor { generation, version, number });
        }
        if last.is_some_and(|last| last.number != page.next.number) {
            return wrong("the cursor is not behind the last item".into());
        }
        self.items += page.items.len() as u64;
        self.lost += lost;
        self.position = ChannelPosition::After(page.next);
        None
    }

    /// Whether it stands behind the last durable item.
    pub(crate) fn has_all(&self, image: &Image) -> bool {
        let head = image.heads.get(&self.entity);
        let generation = head.and_then(|head| head.generation().ok()).unwrap_or_default();
        let living = head.filter(|head| !head.deleted);
        let channels = living.and_then(|head| head.channels().ok()).unwrap_or_default();
        let next = channels.get(CHANNEL).map_or(1, |channel| channel.next);
        matches!(
            self.position,
            ChannelPosition::After(at) if (at.generation, at.number + 1) == (generation, next)
        )
    }

    /// Whether every item that it got was emitted by a turn that took effect.
    pub(crate) fn check(&self, image: &Image) -> Option<Violation> {
        let of = |(entity, version, turn): &(Entity, u64, TurnId)| {
            (*entity == self.entity).then_some((*version, *turn))
        };
        let durable: BTreeSet<_> = image.turns.iter().filter_map(of).collect();
        let (version, turn) = self.seen.difference(&durable).next()?;
        let text = format!("{}: got an item of turn {turn:?}, version {version}", self.entity);
        Some(ViolationKind::ItemNotDurable.because(text))
    }
}
