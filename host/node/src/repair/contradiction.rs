//! What a check of a cluster's rows finds, and the writes that fix it.

use std::collections::BTreeMap;
use std::fmt;

use ostraca_store::CompareAndSet;

/// The kinds of contradictions. Their names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ContradictionKind {
    /// A node's row cannot be decoded.
    UnreadableNode,
    /// Other rows name a node that has no row.
    MissingNode,
    /// Other rows name a later incarnation of a node than its own row.
    NodeBehind,
    /// Two nodes have the same incarnation, although its nonce is random.
    CopiedNode,
    /// A live node's lease is longer than any cluster permits.
    ImplausibleLease,
    /// The manager's row cannot be decoded.
    UnreadableManager,
    /// The assignments have a term, but there is no manager's row.
    MissingManager,
    /// A row has a later term than the manager's row.
    TermAhead,
    /// A row of assignments cannot be decoded.
    UnreadableAssignments,
    /// A row of assignments is missing, although shards of it were claimed.
    MissingAssignments,
    /// A row of assignments lacks shards that were claimed.
    ShortAssignments,
    /// A row of assignments has shards that no pool has.
    LongAssignments,
    /// No pool has any shard of a row of assignments.
    SurplusAssignments,
    /// A shard was claimed in a later epoch than that of its assignment.
    EpochBehind,
    /// A shard was claimed by another incarnation than the owner of the same epoch.
    OwnerDiffers,
    /// A shard's epoch is higher than any cluster reaches.
    ImplausibleEpoch,
    /// A shard has a hand-off, but no owner.
    HandOffWithoutOwner,
    /// A hand-off was begun in a later term than that of its row.
    HandOffOfLaterTerm,
    /// Another row cannot be decoded.
    UnreadableRow,
    /// A row that every cluster has is missing.
    MissingRow,
    /// A row decodes, but its contents cannot be used.
    InvalidRow,
    /// A type has no readable binding.
    MissingBinding,
    /// A type's manifest does not agree with its binding.
    BindingDiffers,
    /// A type is bound to a pool that the cluster does not have.
    UnknownPool,
    /// A type's component is not in the store.
    MissingComponent,
    /// Entities of a type exist, but the type is not deployed.
    MissingType,
    /// An entity is stored in another shard than the one that its id belongs to.
    MisplacedEntity,
    /// The copy of a pool to another one was begun and is unfinished.
    UnfinishedCopy,
    /// Shards were claimed that no pool has.
    UnknownShard,
    /// The rows name another store of the state.
    OtherStateStore,
    /// Nothing is known about the key.
    UnknownKey,
}

impl ContradictionKind {
    /// The name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UnreadableNode => "unreadable-node",
            Self::MissingNode => "missing-node",
            Self::NodeBehind => "node-behind",
            Self::CopiedNode => "copied-node",
            Self::ImplausibleLease => "implausible-lease",
            Self::UnreadableManager => "unreadable-manager",
            Self::MissingManager => "missing-manager",
            Self::TermAhead => "term-ahead",
            Self::UnreadableAssignments => "unreadable-assignments",
            Self::MissingAssignments => "missing-assignments",
            Self::ShortAssignments => "short-assignments",
            Self::LongAssignments => "long-assignments",
            Self::SurplusAssignments => "surplus-assignments",
            Self::EpochBehind => "epoch-behind",
            Self::OwnerDiffers => "owner-differs",
            Self::ImplausibleEpoch => "implausible-epoch",
            Self::HandOffWithoutOwner => "hand-off-without-owner",
            Self::HandOffOfLaterTerm => "hand-off-of-later-term",
            Self::UnreadableRow => "unreadable-row",
            Self::MissingRow => "missing-row",
            Self::InvalidRow => "invalid-row",
            Self::MissingBinding => "missing-binding",
            Self::BindingDiffers => "binding-differs",
            Self::UnknownPool => "unknown-pool",
            Self::MissingComponent => "missing-component",
            Self::MissingType => "missing-type",
            Self::MisplacedEntity => "misplaced-entity",
            Self::UnfinishedCopy => "unfinished-copy",
            Self::UnknownShard => "unknown-shard",
            Self::OtherStateStore => "other-state-store",
            Self::UnknownKey => "unknown-key",
        }
    }
}

impl fmt::Display for ContradictionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What can be done about a contradiction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A repair writes or removes the row. Says what it does.
    Fix(String),
    /// Only an operator can decide. Says what to do.
    Manual(String),
    /// It does no harm, and is left alone. Says why.
    Ignore(String),
}

/// The advice for what exists nowhere else.
pub(super) const RESTORE: &str = "restore a backup";

impl Remedy {
    pub(super) fn manual(text: &str) -> Self {
        Self::Manual(text.into())
    }

    /// What it says.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Fix(text) | Self::Manual(text) | Self::Ignore(text) => text,
        }
    }

    /// The name of its kind: `fix`, `manual` or `ignore`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fix(_) => "fix",
            Self::Manual(_) => "manual",
            Self::Ignore(_) => "ignore",
        }
    }
}

/// A contradiction in the rows of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Its kind.
    pub kind: ContradictionKind,
    /// The key of the row.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What can be done.
    pub remedy: Remedy,
}

/// What a check has found, with one change for each row to fix.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) found: Vec<Contradiction>,
    pub(crate) changes: BTreeMap<String, CompareAndSet>,
}

impl Findings {
    /// Adds a contradiction.
    pub(super) fn report(
        &mut self,
        kind: ContradictionKind,
        key: &str,
        what: impl Into<String>,
        remedy: Remedy,
    ) {
        self.found.push(Contradiction { kind, key: key.into(), what: what.into(), remedy });
    }

    /// Adds the change of a row. A later change of the same row replaces an earlier one.
    pub(super) fn change(&mut self, change: CompareAndSet) {
        self.changes.insert(change.key.clone(), change);
    }
}
