//! The events of this world.

use ostraca_core::ids::{Epoch, Incarnation};
use ostraca_core::message::Outcome;
use ostraca_core::shard::Event;

use super::clients::MessageCopy;
use crate::guest::Work;
use crate::node::ReplyTo;
use crate::store::{Request, Response};

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    NodeCrash,
    StoreCrash { power: bool },
    SyncFails,
    Reset,
    Pause { millis: u64 },
    DropRenewals { millis: u64 },
    Move,
    Redeploy,
}

#[derive(Debug)]
pub(super) enum SimEvent {
    Issue {
        client: usize,
    },
    /// A node learns of a type's deployment.
    Redeployed {
        node: usize,
        revision: u64,
    },
    /// A client's ledger has something to do.
    Session {
        client: usize,
    },
    Release {
        copy: Box<MessageCopy>,
    },
    Arrive {
        node: usize,
        copy: Box<MessageCopy>,
    },
    Reply {
        asker: ReplyTo,
        epoch: Epoch,
        outcome: Outcome,
    },
    /// Checks whether a message that was sent this many times on that connection was answered.
    Missed {
        client: usize,
        line: u64,
        sequence: u64,
        copies: u32,
    },
    AtStore {
        node: usize,
        incarnation: Incarnation,
        connection: u64,
        tag: u64,
        request: Request,
    },
    Sync,
    FromStore {
        node: usize,
        incarnation: Incarnation,
        connection: u64,
        tag: u64,
        response: Response,
    },
    Ran {
        node: usize,
        incarnation: Incarnation,
        event: Event,
        run: Option<Work>,
    },
    Tick {
        node: usize,
        incarnation: Incarnation,
    },
    Renew {
        node: usize,
    },
    RenewalSeen {
        node: usize,
        incarnation: Incarnation,
        sent: u64,
    },
    Renewed {
        node: usize,
        incarnation: Incarnation,
        sent: u64,
    },
    /// A lease has lapsed by the node's own clock, unless it was renewed.
    Lapse {
        node: usize,
        incarnation: Incarnation,
    },
    /// A suspended node reads the current claims.
    ReadClaims {
        node: usize,
        incarnation: Incarnation,
    },
    Manage,
    Assigned {
        node: usize,
        incarnation: Incarnation,
        epoch: Epoch,
    },
    InjectFault(Fault),
    NodeUp {
        node: usize,
        incarnation: Incarnation,
    },
    StoreUp,
}
