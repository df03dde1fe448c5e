//! What can happen in this world, one thing at a time.

use std::sync::Arc;

use ostraca_core::ids::{Epoch, Incarnation};
use ostraca_core::message::{Message, Outcome};
use ostraca_core::shard::Event;

use super::clients::MessageCopy;
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
    /// A node hears of a type's deployment.
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
    /// Whether an answer has come to a message that was sent so often, on that connection.
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
        run: Option<Arc<Message>>,
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
    /// By the node's own clock, a lease would have ended.
    Lapse {
        node: usize,
        incarnation: Incarnation,
    },
    /// A suspended node reads the claims that stand.
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
