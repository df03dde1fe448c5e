//! What happened, as it happens.

use ostraca_sharding::node::Notice;
use ostraca_sharding::rows::Member;
use ostraca_wire::proto::{Event, EventsRequest};
use ostraca_wire::server::{Part, growing};

use super::*;
use crate::view::Happened;

/// Events a frame.
const PAGE: usize = 256;

impl Desk {
    pub(super) fn events(&self, request: EventsRequest) -> AdminAnswer {
        let (parts, answer) = growing();
        let (events, clock) = (self.events.clone(), self.status.clock.clone());
        tokio::spawn(async move {
            let mut more = events.watch();
            let mut last = request.since.saturating_sub(1);
            loop {
                more.mark_unchanged();
                loop {
                    let page = events.after(last, PAGE);
                    let Some(first) = page.first() else { break };
                    // At the very beginning nothing was missed: one asked for what there is.
                    let missed = match last {
                        0 => 0,
                        last => first.number - last - 1,
                    };
                    last = page.last().map_or(last, |event| event.number);
                    let events = page.into_iter().map(event).collect();
                    let now_ms = clock.now().cluster;
                    let part = ostraca_wire::proto::Events { events, missed, now_ms };
                    if parts.send(Ok(Part::Events(part))).await.is_err() {
                        return;
                    }
                }
                if !request.follow {
                    return;
                }
                tokio::select! {
                    () = parts.closed() => return,
                    changed = more.changed() => if changed.is_err() { return },
                }
            }
        });
        answer
    }
}

fn event(happened: Happened) -> Event {
    let Happened { number, at, notice } = happened;
    let base = Event { sequence: number, time_ms: at, ..Event::default() };
    let node = |member: &Member| member.node.to_string();
    let of = |kind: &str, text: String, base: Event| Event { kind: kind.into(), text, ..base };
    match notice {
        Notice::Joined(member) => {
            let base = Event { node: node(&member), ..base };
            of("node-joined", format!("node {member} joined"), base)
        }
        Notice::Gone { member, stopped: true } => {
            let base = Event { node: node(&member), ..base };
            of("node-left", format!("node {member} said goodbye"), base)
        }
        Notice::Gone { member, stopped: false } => {
            let base = Event { node: node(&member), ..base };
            of("node-dead", format!("node {member} was marked dead"), base)
        }
        Notice::Draining(member, on) => {
            let base = Event { node: node(&member), ..base };
            let (kind, what) =
                if on { ("drain-began", "drains") } else { ("drain-undone", "drains no more") };
            of(kind, format!("node {member} {what}"), base)
        }
        Notice::Manager { holder, term } => {
            let base = Event { node: node(&holder), ..base };
            of("manager-changed", format!("node {holder} manages, in term {term}"), base)
        }
        Notice::HandOffBegan { shard, from } => {
            let base = Event { node: node(&from), shard: shard.0, ..base };
            of("hand-off-began", format!("shard {shard} leaves {from}"), base)
        }
        Notice::Assigned { shard, epoch, owner } => {
            let base = Event { node: node(&owner), shard: shard.0, epoch: epoch.0, ..base };
            of(
                "shard-assigned",
                format!("shard {shard} belongs to {owner}, epoch {}", epoch.0),
                base,
            )
        }
        Notice::HandOffFailed { shard, owner } => {
            let base = Event { node: node(&owner), shard: shard.0, ..base };
            of("hand-off-failed", format!("shard {shard} stays with {owner} for now"), base)
        }
        Notice::Lapsed => {
            of("lease-lapsed", "this node's lease lapsed: its shards wait".into(), base)
        }
        Notice::Resumed => of("lease-renewed", "this node's lease is good again".into(), base),
        Notice::NameInUse(member) => {
            let base = Event { node: node(&member), ..base };
            let text =
                format!("another process renews the lease of {member}: is its folder a copy?");
            of("name-in-use", text, base)
        }
    }
}
