//! Streams cluster events as they happen.

use ostraca_catalog::clock::boot_millis;
use ostraca_control::view::EventRecord;
use ostraca_core::node::Notice;
use ostraca_core::rows::Member;
use ostraca_wire::proto::{Event, EventsRequest};
use ostraca_wire::server::{AdminOutput, AdminUpdate, update_channel};

use super::AdminService;

/// Maximum number of events per frame.
const PAGE: usize = 256;

impl AdminService {
    pub(super) fn events(&self, request: EventsRequest) -> AdminOutput {
        let (parts, answer) = update_channel();
        let (events, clock) = (self.events.clone(), self.status.clock.clone());
        tokio::spawn(async move {
            let mut more = events.watch();
            let mut last = request.from_sequence.saturating_sub(1);
            loop {
                more.mark_unchanged();
                loop {
                    let page = events.after(last, PAGE);
                    let Some(first) = page.first() else { break };
                    // A client that starts at the beginning asks for whatever is kept, so nothing counts as
                    // missed.
                    let missed = match last {
                        0 => 0,
                        last => first.sequence - last - 1,
                    };
                    last = page.last().map_or(last, |event| event.sequence);
                    let now = boot_millis();
                    let events = page.into_iter().map(|it| event(it, now)).collect();
                    let now_ms = clock.now().cluster_time;
                    let part =
                        ostraca_wire::proto::Events { events, missed, cluster_time_ms: now_ms };
                    if parts.send(Ok(AdminUpdate::Events(part))).await.is_err() {
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

/// `now` is read from the node's own monotonic clock, which does not jump.
fn event(happened: EventRecord, now: u64) -> Event {
    let EventRecord { sequence: number, cluster_time_ms: at, mono, unix_ms: wall_ms, notice } =
        happened;
    let text = notice.to_string();
    let age_ms = now.saturating_sub(mono);
    let base = Event {
        sequence: number,
        cluster_time_ms: at,
        message: text,
        unix_ms: wall_ms,
        age_ms,
        ..Event::default()
    };
    let of = |kind: &str, member: &Member| Event {
        kind: kind.into(),
        node: member.node.to_string(),
        ..base.clone()
    };
    match notice {
        Notice::NodeJoined(member) => of("node-joined", &member),
        Notice::NodeGone { member, left_gracefully: true } => of("node-left", &member),
        Notice::NodeGone { member, left_gracefully: false } => of("node-dead", &member),
        Notice::DrainChanged(member, true) => of("drain-started", &member),
        Notice::DrainChanged(member, false) => of("drain-cancelled", &member),
        Notice::ManagerChanged { holder, .. } => of("manager-changed", &holder),
        Notice::HandOffStarted { shard, from } => {
            Event { shard: shard.0, ..of("hand-off-started", &from) }
        }
        Notice::ShardAssigned { shard, epoch, owner } => {
            Event { shard: shard.0, epoch: epoch.0, ..of("shard-assigned", &owner) }
        }
        Notice::HandOffFailed { shard, owner } => {
            Event { shard: shard.0, ..of("hand-off-failed", &owner) }
        }
        Notice::ShardEscalated { shard, owner, .. } => {
            Event { shard: shard.0, ..of("shard-escalated", &owner) }
        }
        Notice::ShardStartedLate { shard, owner, .. } => {
            Event { shard: shard.0, ..of("shard-started-late", &owner) }
        }
        Notice::PlacementTimedOut { .. } => Event { kind: "placement-timed-out".into(), ..base },
        Notice::ManagerSteppedDown { to } => {
            Event { kind: "manager-stepped-down".into(), node: to.to_string(), ..base }
        }
        Notice::LeaseLapsed => Event { kind: "lease-lapsed".into(), ..base },
        Notice::LeaseRecovered => Event { kind: "lease-recovered".into(), ..base },
        Notice::StrategyPanicked { .. } => Event { kind: "strategy-panicked".into(), ..base },
        Notice::MovesRejected { .. } => Event { kind: "moves-rejected".into(), ..base },
        Notice::AllocationWaits { .. } => Event { kind: "allocation-waits".into(), ..base },
        Notice::ShardsReleased { .. } => Event { kind: "shards-released".into(), ..base },
        Notice::ArbitrationDecided { winner, .. } => of("arbitration-decided", &winner),
        Notice::ArbitrationLost { winner, .. } => of("arbitration-lost", &winner),
        Notice::NodeNameInUse(member) => of("name-in-use", &member),
        Notice::RolloutStopped { .. } => Event { kind: "rollout-stopped".into(), ..base },
    }
}
