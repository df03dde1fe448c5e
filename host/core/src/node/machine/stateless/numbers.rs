//! Numbers: a host takes the smallest one that is free, by compare-and-set (E5).

use super::{
    Context, Holdings, Member, Membership, NumbersRow, ObservedCluster, Pool, Row, RowKey,
    Stateless, WriteError, WritePurpose,
};

impl Stateless {
    /// Learns who has which number, unless a newer row is known.
    pub(in super::super) fn learn_numbers(&mut self, pool: String, row: NumbersRow, revision: u64) {
        if self.numbers.get(&pool).is_none_or(|(_, known)| *known < revision) {
            self.numbers.insert(pool, (row, revision));
            self.changed = true;
        }
    }

    /// Takes a number for a host that may own shards, and releases that of a host that may not. Removes hosts that have
    /// ended: the first host that has not does that, so that not all of them write the row at the same time.
    pub(super) fn drive_number(
        &mut self,
        context: &mut Context,
        observed: &mut ObservedCluster,
        membership: &Membership,
        holdings: &Holdings,
        pool: &Pool,
        me: &Member,
    ) {
        let key = RowKey::Numbers(pool.name.clone());
        let writes = |purpose: &WritePurpose| matches!(purpose, WritePurpose::Numbers(name, _) if *name == pool.name);
        if self.is_waiting(context, &key) || context.requests.any_write(writes) {
            return;
        }
        let known = self.numbers.get(&pool.name);
        let (row, expected) = known.map(|(row, at)| (row.clone(), Some(*at))).unwrap_or_default();
        let unknown = row.holders.iter().map(|holder| &holder.member);
        let unknown = unknown.filter(|member| observed.has_ended(member).is_none());
        let unknown: Vec<_> = unknown.map(|member| member.node.clone()).collect();
        observed.read_missing_rows(context, unknown);
        let has_gone = |member: &Member| member != me && is_gone(context, observed, member);
        let first_left = row.holders.iter().position(|holder| !has_gone(&holder.member));
        let (place, has_gone_ones) =
            (row.place_of(me), row.holders.iter().any(|holder| has_gone(&holder.member)));
        let others = row.holders.iter().map(|it| &it.member).filter(|member| *member != me);
        let wants = wants_number(context, observed, membership, holdings, pool, me, others);
        let cleans = has_gone_ones && (first_left.is_none() || first_left == place);
        if wants == place.is_some() && !(cleans && place.is_some()) {
            return;
        }
        let mut new = row;
        new.holders.retain(|holder| !has_gone(&holder.member) && (wants || holder.member != *me));
        if wants {
            new.add(me.clone());
        }
        let purpose = WritePurpose::Numbers(pool.name.clone(), new.clone());
        context.write(purpose, key, expected, Row::Numbers(new));
    }

    /// Handles the answer to a write of numbers.
    pub(in super::super) fn on_numbers_written(
        &mut self,
        context: &mut Context,
        pool: String,
        row: NumbersRow,
        result: Result<u64, WriteError>,
    ) {
        self.changed = true;
        match result {
            Ok(revision) => self.learn_numbers(pool, row, revision),
            Err(error) => {
                if let WriteError::Conflict(Some((Row::Numbers(row), revision))) = &error {
                    self.learn_numbers(pool.clone(), row.clone(), *revision);
                }
                let known = self.numbers.get(&pool).map(|(_, at)| *at);
                self.on_write_failed(context, RowKey::Numbers(pool), known, &error);
            }
        }
    }
}

/// Whether a host's number is free: its incarnation has ended, or its lease has lapsed as far as this node sees. The
/// latter needs no proof: an incarnation that returns takes a number again.
fn is_gone(context: &Context, observed: &ObservedCluster, member: &Member) -> bool {
    observed.has_ended(member).unwrap_or(false)
        || (observed.alive(member)
            && observed.lapsed(&member.node, context.mono(), context.settings.lease_margin))
}

/// Whether this node should own shards of a pool, which nobody does if the pool is closed. One that is draining, or whose
/// `EntityStore` does not respond (R9), should not as long as another host can. Only one of the `others`, which have
/// numbers, counts: all hosts may have lost the store at the same time, and must not all give up their numbers.
fn wants_number<'a>(
    context: &Context,
    observed: &ObservedCluster,
    membership: &Membership,
    holdings: &Holdings,
    pool: &Pool,
    me: &Member,
    mut others: impl Iterator<Item = &'a Member>,
) -> bool {
    if pool.is_closed() || !membership.stays() || membership.is_departing() {
        return false;
    }
    let is_draining = observed.node(&me.node).is_some_and(|(row, _)| row.draining);
    let is_able =
        !is_draining && !membership.has_lost_store(context) && !holdings.on_probation(context);
    // Without a manager, nobody marks a host dead: what counts is whether it renews its lease.
    let can_own = |other: &Member| {
        observed.eligible_hosts(pool).any(|(host, _)| host == *other)
            && !observed.lapsed(&other.node, context.mono(), context.settings.lease_margin)
    };
    is_able || !others.any(can_own)
}
