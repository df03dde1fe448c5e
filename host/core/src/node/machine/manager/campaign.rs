//! Candidates for the leadership, and the write of the row that names its holder (K21).

use super::{
    Context, Extensions, Manager, ManagerRow, Member, ObservedCluster, Row, RowKey, WriteError,
    WritePurpose,
};

impl Manager {
    /// Campaigns for the leadership once its holder's incarnation has ended or its lease has lapsed; candidates
    /// campaign in order of age (K21).
    pub(in super::super) fn campaign(
        &mut self,
        context: &mut Context,
        observed: &mut ObservedCluster,
        me: &Member,
    ) {
        if context.requests.writes_manager_row() {
            return;
        }
        let now = context.mono();
        let holder = observed.manager_row().map(|row| row.holder.clone());
        let margin = context.settings.lease_margin;
        let is_vacant = match holder.as_ref().map(|holder| (holder, observed.has_ended(holder))) {
            None => true,
            Some((holder, Some(ended))) => ended || observed.lapsed(&holder.node, now, margin),
            Some((holder, None)) => {
                // An unobserved row does not prove a death: it may be in transit.
                observed.read_missing_rows(context, [holder.node.clone()]);
                false
            }
        };
        if !is_vacant {
            return observed.leadership_is_held();
        }
        let since = observed.leadership_vacant_since(now);
        let mut candidates: Vec<_> = observed
            .all_live()
            .filter(|(node, row)| {
                row.roles.manager && holder.as_ref().is_none_or(|holder| holder.node != **node)
            })
            .map(|(node, row)| (row.registered_at, node))
            .collect();
        candidates.sort();
        let rank =
            candidates.iter().position(|(_, node)| **node == me.node).unwrap_or(candidates.len());
        if now < since + rank as u64 * context.settings.campaign_stagger {
            return;
        }
        let term = observed.manager_term() + 1;
        let row = ManagerRow { term, holder: me.clone(), extensions: Extensions::default() };
        write_manager_row(context, observed, row, 0);
    }

    /// Without a term there is nothing to decide.
    pub(in super::super) fn forget_decisions(&mut self) {
        self.decision_needed = false;
    }
}

/// Writes the row that names the new manager. Fields of other releases are kept in the row.
pub(super) fn write_manager_row(
    context: &mut Context,
    observed: &ObservedCluster,
    row: ManagerRow,
    step_downs: u32,
) {
    let seen = observed.manager();
    let expected = seen.map(|(_, revision)| *revision);
    let extensions = seen.map(|(row, _)| row.extensions.clone()).unwrap_or_default();
    let row = ManagerRow { extensions, ..row }.with_consecutive_step_downs(step_downs);
    let purpose = WritePurpose::SetManager(row.clone());
    context.write(purpose, RowKey::Manager, expected, Row::Manager(row));
}

/// Handles the answer to the write of the manager's row. The caller records the row.
pub(in super::super) fn on_manager_row_written(
    context: &mut Context,
    observed: &mut ObservedCluster,
    result: &Result<u64, WriteError>,
) {
    if *result == Err(WriteError::Unknown) {
        observed.restart_vacancy_at(context.mono() + context.settings.store_retry_interval);
        context.read(RowKey::Manager);
    }
}
