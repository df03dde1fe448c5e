//! The violations that a run can contain, as values. A test that disables a rule names the violation that it expects.

/// A promise or a rule that a run broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViolationKind {
    /// The history that clients saw breaks a promise.
    History(ostraca_oracle::ViolationKind),
    /// One message made two versions.
    RanTwice,
    /// A message was reported as not run, but took effect.
    EffectAfterNotRun,
    /// A command was refused as superseded, but never ran.
    Superseded,
    /// A message that reused another message's id was answered.
    ReusedIdAnswered,
    /// A request was answered twice, or forwarded after its answer.
    SecondReply,
    /// Messages are still unanswered, or shards still unbalanced, long after the last fault.
    Unanswered,
    /// Shards are still unserved long after the last fault.
    Unserved,
    /// The run does not end.
    Endless,
    /// A turn started without a valid lease (R9).
    TurnWithoutLease,
    /// A node whose lease lapsed was not suspended (R9).
    NotSuspended,
    /// A node resumed before it had read its claims (R9).
    ResumedWithoutClaimCheck,
    /// A turn started after its deadline (R22).
    TurnAfterDeadline,
    /// A shard was reported as stopped while it still had an instance or a commit (A16).
    StoppedEarly,
    /// On replay, the same events gave different actions.
    NotReplayed,
    /// An older revision of a type ran on state that a newer one had written (R24).
    RevisionFell,
    /// A revision ran on state of another schema, or a migration was not committed as a whole (R24).
    WrongSchema,
    /// A shard went to a new owner while the former owner held it (R7).
    OwnerReplacedAlive,
    /// An incarnation registered over a live lease (R7).
    RegisteredOverLiveLease,
    /// An incarnation was marked dead while its lease was valid (R8).
    MarkedDeadWithLiveLease,
    /// An incarnation had ended while a process still relied on its lease (R8).
    EndedLeaseTrusted,
    /// A node campaigned while the leader's lease was valid (R8).
    ElectedOverLiveLease,
    /// An ended incarnation came back, or incarnations are out of order (R7).
    IncarnationOrder,
    /// A manager decided before it had sealed every row (R10).
    DecidedUnsealed,
    /// A row's term is lower than before, or a new manager's term is not higher (R10).
    TermOrder,
    /// An epoch went back, or has two owners (R5).
    EpochOrder,
    /// A node claimed a shard that no row assigns to it.
    UnassignedClaim,
    /// An owner counted other entities than the store has (K38).
    WrongCount,
    /// Shards were given to hosts before there were enough of them (K27).
    AllocatedEarly,
    /// A shard went to a node without the role of its pool (K39).
    WrongPool,
    /// Two hosts of a pool without a manager have one number, or a host has two (E5).
    NumberTwice,
    /// In a pool without a manager, a shard was taken before its lease had lapsed (E8).
    ShardLeaseTaken,
    /// A shard did not get to the node to which it was pinned, or where a program wanted it (E9).
    NotPlaced,
    /// A hand-off began before its row was written (S15).
    SentBeforeWritten,
    /// A hand-off waited for acknowledgements until it timed out (R12).
    WaitedForAcks,
    /// Shards moved to and from a host with a slow store too often (R9).
    MovedTooOften,
    /// A route went back to a lower epoch (R13).
    RouteBack,
    /// A node left while it held shards (S10).
    LeftWithShards,
    /// A node left without being told to.
    LeftUnrequested,
    /// A number of the arbiter's lease has two winners, or is lower than one before (E13).
    ArbiterOrder,
    /// A node that lost an arbitration goes on (E13).
    LoserWentOn,
    /// A node ended itself although it lost no arbitration, or had the winner's flag (E13).
    EndedWithoutLoss,
    /// A router requests a wake-up although nothing is due.
    RouterSpins,
    /// The oracle could not compare all values: too many combinations of unknown commands explain them.
    NotCompared,
    /// A node accepted a message although its budget was full (K19).
    OverBudget,
    /// A turn started for a message that every gateway must refuse (S11.6).
    InvalidMessageRan,
    /// A message's deadline exceeds its gateway's limit (R22).
    DeadlineUnbound,
    /// A message's turn ran again with a different time (R20).
    TurnTimeChanged,
    /// A timer fired before it was due (R25).
    FiredEarly,
    /// A firing took effect although its timer had been cancelled, replaced or fired (R25).
    FiredVoid,
    /// A timer has not fired long after the last fault (R25).
    TimerNotFired,
    /// An entity's wake-up is not the one that its timers and its outbox need (R25).
    WakeUpWrong,
    /// A tell made two versions (R19).
    ToldTwice,
    /// Tells from one sender ran in a different order from that in which they were sent (R19).
    TellOrder,
    /// A tell ran that no committed turn sent (R25).
    ToldUncommitted,
    /// A tell was deleted although its target had not run it (R19).
    TellLost,
    /// A tell returned to its outbox under its number, or a dead letter was taken out twice (R19).
    TellReturned,
    /// A tell is still waiting long after the last fault (R19).
    TellNotSent,
    /// An asked command produced two versions, or ran although no turn sent it (R20).
    AskRanTwice,
    /// An ask was answered, but no durable turn ran it (R20).
    AskLost,
    /// An ask got two different answers (R20).
    AskAnswerChanged,
    /// An ask ran although it was reported as not run (R16).
    AskRanAfterRefusal,
    /// An ask was sent before the entity's earlier turns were durable (R20).
    AskedUncommitted,
    /// A cycle of asks was not broken (R20).
    AskCycleKept,
    /// A remembered entity was not started long after the last fault (K31).
    NotRecovered,
    /// The head of an entity and its mark differ (K31).
    MarkWrong,
    /// An event of a journal is missing, was overwritten, or has another number than its turn expected (E18).
    JournalWrong,
    /// A subscriber got an item of a turn that did not take effect (R3).
    ItemNotDurable,
    /// A subscriber got items out of order, twice, or with a wrong count of those it has missed.
    ChannelWrong,
    /// An entity did not get an item to which it had subscribed, or got one twice or out of order (R27).
    SubscriptionWrong,
    /// A subscriber does not have every durable item long after the last fault.
    SubscriberBehind,
    /// A record of a deleted entity is left, or is still to be removed long after the last fault (E17).
    DeletionLeft,
    /// An entity was deleted before it expired (E17).
    ExpiredEarly,
    /// A manager moved a shard more often than escalated failures may (K33).
    EscalatedTooOften,
    /// A shard's data is not in the database that the map names long after the last fault (R26).
    NotRelocated,
    /// An instance was passivated before the delay that its guest had set (E15).
    PassivatedEarly,
    /// A turn in a stopping shard still waits for an ask (R15).
    StopWaitsForAsk,
    /// A row holds a record of the wrong kind.
    RowKind,
}

impl ViolationKind {
    /// A violation of this kind.
    pub(crate) fn because(self, text: String) -> Violation {
        Violation { kind: self, text }
    }
}

/// One violation.
pub type Violation = ostraca_oracle::Violation<ViolationKind>;

/// A violation in what clients saw.
pub(crate) fn of_history(found: ostraca_oracle::Violation) -> Violation {
    Violation { kind: ViolationKind::History(found.kind), text: found.text }
}

/// What may follow if answered turns are lost or take effect twice: for clients, timers, tells and asks.
pub const WRONG_VERSIONS: &[ViolationKind] = &[
    ViolationKind::History(ostraca_oracle::ViolationKind::DuplicateVersion),
    ViolationKind::History(ostraca_oracle::ViolationKind::StaleCommand),
    ViolationKind::History(ostraca_oracle::ViolationKind::StaleQuery),
    ViolationKind::History(ostraca_oracle::ViolationKind::SessionOrder),
    ViolationKind::History(ostraca_oracle::ViolationKind::StaleSessionRead),
    ViolationKind::History(ostraca_oracle::ViolationKind::CommandValue),
    ViolationKind::History(ostraca_oracle::ViolationKind::QueryValue),
    ViolationKind::History(ostraca_oracle::ViolationKind::Unexplained),
    ViolationKind::History(ostraca_oracle::ViolationKind::LostCommit),
    ViolationKind::WakeUpWrong,
    // Owners follow the versions that they know.
    ViolationKind::WrongCount,
    ViolationKind::RanTwice,
    ViolationKind::EffectAfterNotRun,
    ViolationKind::Superseded,
    ViolationKind::FiredVoid,
    ViolationKind::TimerNotFired,
    ViolationKind::ToldTwice,
    ViolationKind::ToldUncommitted,
    ViolationKind::TellLost,
    ViolationKind::AskRanTwice,
    ViolationKind::AskAnswerChanged,
    ViolationKind::AskLost,
    ViolationKind::AskRanAfterRefusal,
    ViolationKind::JournalWrong,
    ViolationKind::MarkWrong,
    ViolationKind::ItemNotDurable,
    ViolationKind::ChannelWrong,
];
