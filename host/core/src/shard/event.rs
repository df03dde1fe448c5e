//! The events that a shard's machine handles.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::asks::{AskNote, NewAsk};
use super::calls::CallDigest;
use super::channels::Emit;
use super::journal::JournalChange;
use super::outbox::NewTell;
use super::settings::{StopReason, TypeSettings};
use super::stored::HeadPage;
use super::timers::TimerChange;
use crate::ids::{Entity, MessageId, TurnId};
use crate::message::{ErrorCode, Message, Outcome};
use crate::quota::FullNamespaces;
use crate::records::{ChannelItem, ClaimOutcome, CommitOutcome, GuestReply, LoadedEntity};

/// An input of the machine. Events about an instance carry its generation, and events about a turn its id. An event
/// about an instance or a turn that the machine has already given up is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The time in [`Machine::next_wake`](super::Machine::next_wake) has been reached.
    Tick,
    /// The lease was renewed by a request *sent* at this time on the node's clock (R8).
    LeaseRenewed {
        /// [`Now::mono`](crate::message::Now::mono) when the request was sent.
        sent_at: u64,
        /// How long the lease is valid from then on. The length in the latest event applies (R8).
        lease: u64,
    },
    /// The shard's own lease was renewed by a request *sent* at this time on the node's clock (E8). Once this event has
    /// arrived, the shard relies on this lease as well as on the node's. Only shards of pools without a manager get it.
    ShardLeaseRenewed {
        /// [`Now::mono`](crate::message::Now::mono) when the request was sent.
        sent_at: u64,
        /// How long the lease is valid from then on.
        lease: u64,
    },
    /// A type was deployed, or deployed again.
    TypeDeployed {
        /// The type.
        entity_type: Arc<str>,
        /// The type's settings.
        settings: TypeSettings,
    },
    /// The result of the [`Action::Claim`](super::Action::Claim) with that number.
    ClaimResult {
        /// The claim's number.
        number: u64,
        /// The claim's outcome.
        outcome: ClaimOutcome,
    },
    /// A message arrived. Its reply token is unique: a caller that resends a clone creates a new token for it.
    Message(Arc<Message>),
    /// The result of [`Action::ScanWakes`](super::Action::ScanWakes).
    WakesScanned {
        /// The action's number.
        number: u64,
        /// The wake-ups in order, and whether more follow; or why the store failed.
        page: Result<(Vec<(u64, Entity)>, bool), String>,
    },
    /// The result of [`Action::ScanRemembered`](super::Action::ScanRemembered).
    RememberedScanned {
        /// The action's number.
        number: u64,
        /// The entities in order, and whether more follow; or why the store failed.
        page: Result<(Vec<Entity>, bool), String>,
    },
    /// Somebody wants to know how many entities the shard stores: see [`Machine::stored`](super::Machine::stored).
    CountStored,
    /// The namespaces that have used up a quota, which replace those of the last such event.
    NamespacesFull(FullNamespaces),
    /// The result of [`Action::ScanHeads`](super::Action::ScanHeads).
    HeadsScanned {
        /// The action's number.
        number: u64,
        /// The heads, and where the next page begins; or why the store failed.
        page: Result<HeadPage, String>,
    },
    /// The result of [`Action::ReadChannel`](super::Action::ReadChannel).
    ChannelRead {
        /// The entity.
        entity: Entity,
        /// The action's number.
        reader: u64,
        /// The items with their numbers, in order; or why the store failed.
        items: Result<Vec<(u64, ChannelItem)>, String>,
    },
    /// The result of [`Action::ScanKeys`](super::Action::ScanKeys).
    KeysScanned {
        /// The entity.
        entity: Entity,
        /// The action's generation.
        generation: u64,
        /// The keys in order, and whether more follow; or why the store failed.
        page: Result<(Vec<Bytes>, bool), String>,
    },
    /// The result of [`Action::Load`](super::Action::Load).
    Loaded {
        /// The entity.
        entity: Entity,
        /// The action's generation.
        generation: u64,
        /// The loaded entity, or why the store failed.
        result: Result<LoadedEntity, String>,
    },
    /// The slot that [`Action::RequestSlot`](super::Action::RequestSlot) requested is available.
    SlotGranted {
        /// The entity.
        entity: Entity,
        /// The action's generation.
        generation: u64,
    },
    /// A slot is needed: drop this instance if it is idle.
    Evict {
        /// The entity.
        entity: Entity,
    },
    /// The result of [`Action::Activate`](super::Action::Activate) or [`Action::Migrate`](super::Action::Migrate).
    ActivationResult {
        /// The entity.
        entity: Entity,
        /// The action's generation.
        generation: u64,
        /// The start turn's output, or why there is no instance.
        result: ActivationOutcome,
    },
    /// The result of [`Action::Run`](super::Action::Run), [`Action::Fire`](super::Action::Fire) or
    /// [`Action::CallStopHook`](super::Action::CallStopHook).
    TurnDone {
        /// The entity.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// The turn.
        turn: TurnId,
        /// The turn's result.
        result: TurnOutput,
    },
    /// The query of an [`Action::Run`](super::Action::Run) was not run, because the caller with the message's reply
    /// token no longer waits for it.
    QueryAbandoned {
        /// The entity.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// The turn.
        turn: TurnId,
    },
    /// A running turn asks another entity (R20).
    AskStarted {
        /// The entity whose turn asks.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// The ask's place in the turn: asks and calls are numbered together, from 0, in the order in which they are
        /// started.
        place: u32,
        /// The ask.
        ask: NewAsk,
    },
    /// The answer to an [`Action::Ask`](super::Action::Ask).
    AskAnswered {
        /// The entity that sent it.
        asker: Entity,
        /// The turn that sent it.
        turn: TurnId,
        /// The ask's id.
        id: MessageId,
        /// The outcome of this copy.
        outcome: Outcome,
    },
    /// The note of an [`Action::SendAskNote`](super::Action::SendAskNote) may not have arrived.
    AskNoteLost {
        /// The entity that sent it.
        entity: Entity,
        /// The intended recipient.
        target: Entity,
        /// The note.
        note: AskNote,
    },
    /// A running turn starts an outgoing HTTP call (R20). It must not be made before its
    /// [`Action::ReleaseCall`](super::Action::ReleaseCall).
    CallStarted {
        /// The entity whose turn calls.
        entity: Entity,
        /// The turn.
        turn: TurnId,
        /// The call's place in the turn, as in [`Event::AskStarted`].
        place: u32,
        /// A hash of what the call requests.
        digest: CallDigest,
    },
    /// A started call has a result, or was abandoned: the turn no longer waits for it.
    CallEnded {
        /// The entity whose turn called.
        entity: Entity,
        /// The turn.
        turn: TurnId,
        /// The call's place in the turn.
        place: u32,
    },
    /// The answer to an [`Action::Tell`](super::Action::Tell).
    TellAnswered {
        /// The entity that sent it.
        sender: Entity,
        /// The tell's target.
        target: Entity,
        /// The tell's number.
        number: u64,
        /// The creation time of the copy that was answered.
        created_ms: u64,
        /// The outcome of its message.
        outcome: Outcome,
    },
    /// The answer to an [`Action::AskSender`](super::Action::AskSender).
    SenderAnswered {
        /// The target.
        entity: Entity,
        /// The sending entity.
        sender: Entity,
        /// The number of its first tell to the target, if it has one; the outer `None` if it did not answer.
        first: Option<Option<u64>>,
    },
    /// Outcomes of commits. Those in one event are in the order in which the commits were requested.
    CommitResults(Vec<(Entity, TurnId, CommitOutcome)>),
    /// The lease lapsed: no turn of any kind starts until [`Event::Resume`]. Running turns may finish, and their
    /// commits are sent, since the store fences them. Instances and messages wait (R9).
    Suspend,
    /// The lease was renewed in the same incarnation, and the claims are unchanged: the shard resumes (R9).
    Resume,
    /// The machine must give up the shard.
    Stop(StopReason),
    /// The shard belongs to another node: everything is dropped immediately, without
    /// [`Action::Stopped`](super::Action::Stopped) or [`Action::Lost`](super::Action::Lost), and later events are
    /// ignored.
    Drop,
}

/// The outcome of an activation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "nearly every activation starts its instance")]
pub enum ActivationOutcome {
    /// The instance is live; this is the output of its start turn or migration.
    Started(TurnOutput),
    /// The activation failed.
    Failed {
        /// A stable error code.
        code: ErrorCode,
        /// A human-readable message.
        message: String,
        /// Milliseconds after which a retry may succeed; `None` if it cannot succeed unless something else changes.
        retry_after: Option<u32>,
    },
}

/// The result of one turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnOutput {
    /// The guest's reply, or why there is none.
    pub result: TurnResult,
    /// Keys of the state that the turn changed, with their new values or `None`; empty unless the turn succeeded.
    pub writes: Vec<(Bytes, Option<Bytes>)>,
    /// Timer changes, in order; empty unless the turn succeeded.
    pub timers: Vec<TimerChange>,
    /// The tells that the turn sends, in order; empty unless the turn succeeded.
    pub tells: Vec<NewTell>,
    /// Changes to the journal; empty unless the turn succeeded.
    pub journal: JournalChange,
    /// The items that the turn emits, in order; empty unless the turn succeeded.
    pub emits: Vec<Emit>,
    /// Size in bytes of the keys and values in the state after the turn; `None` if the turn did not access the state.
    pub state_bytes: Option<u64>,
    /// Whether the entity is remembered from now on; `None` if the turn leaves that as it is.
    pub remember: Option<bool>,
    /// When the entity expires from now on, in milliseconds since the Unix epoch (UTC); `Some(None)` leaves it to the
    /// type's time to live, `None` as it is.
    pub expiry: Option<Option<u64>>,
    /// Whether the turn deletes its entity. Only its tells and its reply are then committed. Ignored in a hook's turn.
    pub delete: bool,
    /// Whether the guest asked for passivation.
    pub passivate: bool,
    /// Milliseconds without a message or firing after which the instance is dropped from now on; `Some(None)` for the
    /// type's idle timeout, `None` as it is. Applies whatever the turn's result is.
    pub passivate_after: Option<Option<u64>>,
}

impl TurnOutput {
    /// The output of a turn with this result that changed nothing.
    #[must_use]
    pub fn without_effects(result: TurnResult) -> Self {
        Self {
            result,
            writes: Vec::new(),
            timers: Vec::new(),
            tells: Vec::new(),
            journal: JournalChange::default(),
            emits: Vec::new(),
            state_bytes: None,
            remember: None,
            expiry: None,
            delete: false,
            passivate: false,
            passivate_after: None,
        }
    }

    /// Whether the turn changed nothing that is stored.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        self.writes.is_empty()
            && self.timers.is_empty()
            && self.tells.is_empty()
            && self.journal.is_empty()
            && self.emits.is_empty()
            && self.remember.is_none()
            && self.expiry.is_none()
    }
}

/// How a turn ended in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TurnResult {
    /// The guest replied, with a result or an application error.
    Replied(GuestReply),
    /// A trap, an exceeded limit or an interruption: the instance is unusable.
    Failed {
        /// A stable error code.
        code: ErrorCode,
        /// A human-readable message.
        message: String,
        /// Milliseconds after which a retry may succeed; `None` if the guest caused the failure.
        retry_after: Option<u32>,
    },
    /// The guest was not called, because the node has no capacity for its reply. The instance is unchanged.
    Refused {
        /// A stable error code.
        code: ErrorCode,
        /// A human-readable message.
        message: String,
        /// Milliseconds after which a retry may succeed.
        retry_after: u32,
    },
}
