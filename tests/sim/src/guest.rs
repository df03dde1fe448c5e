//! Replaces the sandbox: a counter's logic on a live instance's state.
//!
//! The real sandbox is `ostraca-wasm`, whose own tests attack it. Here, only the results that the core sees matter: a
//! turn may answer, refuse, fail, write, or ask for passivation.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ostraca_core::message::Message;
use ostraca_core::records::GuestReply;
use ostraca_core::shard::{Firing, TurnOutput, TurnResult};
use ostraca_oracle::{Counter, Model};

use crate::{asks, deletion, subscriptions, tells};

/// A counter's maximum, low enough that refusals occur.
pub const LIMIT: u64 = 40;

/// The key under which a migration stores the schema that it migrated to.
pub(crate) const SCHEMA_KEY: &str = "schema";

/// What a turn runs.
#[derive(Clone, Debug)]
pub enum Work {
    /// A message.
    Message(Arc<Message>),
    /// A timer's firing.
    Firing(Arc<Firing>),
    /// The stop hook.
    Stop,
}

/// A live instance.
#[derive(Debug)]
pub struct Instance {
    /// Distinguishes the instance from its predecessors.
    pub generation: u64,
    state: BTreeMap<Bytes, Bytes>,
}

fn number(state: &BTreeMap<Bytes, Bytes>, key: &'static str) -> u64 {
    let value = state.get(key.as_bytes()).and_then(|value| value.as_ref().try_into().ok());
    value.map_or(0, u64::from_le_bytes)
}

impl Instance {
    /// Creates an instance with the loaded state.
    #[must_use]
    pub fn new(generation: u64, state: BTreeMap<Bytes, Bytes>) -> Self {
        Self { generation, state }
    }

    /// Runs a start or stop turn, which increments the counter under `key` if it `writes`.
    pub fn hook(&mut self, key: &'static str, writes: bool) -> TurnOutput {
        let mut turn = answered(GuestReply::Result(Bytes::new()));
        if writes {
            let value = number(&self.state, key) + 1;
            self.write(&mut turn, key, value);
        }
        turn
    }

    /// Migrates the state to a schema.
    pub fn migrate(&mut self, schema: u32) -> TurnOutput {
        let mut turn = answered(GuestReply::Result(Bytes::new()));
        self.write(&mut turn, SCHEMA_KEY, schema.into());
        turn
    }

    /// The output of a turn that refuses.
    #[must_use]
    pub fn refusal() -> TurnOutput {
        answered(GuestReply::Error { code: "no".into(), message: String::new() })
    }

    /// Runs one message. `keep_errors` breaks R21: a refused turn's effects remain in memory.
    pub fn message(&mut self, message: &Message, keep_errors: bool, passivate: bool) -> TurnOutput {
        if &*message.method == tells::METHOD {
            let turn = if (message.id.sequence >> 16) % 16 == 3 {
                answered(GuestReply::Error { code: "no".into(), message: String::new() })
            } else {
                self.hook("told", true)
            };
            return TurnOutput { passivate, ..turn };
        }
        if &*message.method == subscriptions::METHOD {
            return TurnOutput { passivate, ..self.hook("items", true) };
        }
        if &*message.method == asks::METHOD {
            let refuses = message.body.first() == Some(&2);
            if refuses {
                return answered(GuestReply::Error { code: "no".into(), message: String::new() });
            }
            let mut turn = self.hook("asked", true);
            let sum = Bytes::from(number(&self.state, "asked").to_le_bytes().to_vec());
            turn.result = TurnResult::Replied(GuestReply::Result(sum));
            return turn;
        }
        if &*message.method == deletion::METHOD {
            let reply = GuestReply::Result(Bytes::from_static(&[0; 8]));
            return TurnOutput { delete: true, passivate, ..answered(reply) };
        }
        let mut model = Counter { value: number(&self.state, "value"), limit: LIMIT };
        let by = message.body.as_ref().try_into().map_or(0, u64::from_le_bytes);
        let value = match &*message.method {
            "get" => model.query("get", &by.into()),
            method => model.command(method, &by.into()),
        };
        let mut turn = answered(match value {
            Ok(value) => {
                GuestReply::Result(value.as_u64().unwrap_or(0).to_le_bytes().to_vec().into())
            }
            Err(code) => GuestReply::Error { code, message: String::new() },
        });
        turn.passivate = passivate;
        let refused = matches!(turn.result, TurnResult::Replied(GuestReply::Error { .. }));
        if &*message.method != "get" && !refused {
            self.write(&mut turn, "value", model.value);
        } else if refused && keep_errors {
            self.write(&mut turn, "value", model.value + 1);
            turn.writes.clear();
        }
        turn
    }

    /// Runs a timer's firing, which increments a counter unless it refuses.
    pub fn firing(&mut self, refuses: bool) -> TurnOutput {
        if refuses {
            return answered(GuestReply::Error { code: "no".into(), message: String::new() });
        }
        self.hook("fired", true)
    }

    fn write(&mut self, turn: &mut TurnOutput, key: &'static str, value: u64) {
        let (key, value) =
            (Bytes::from_static(key.as_bytes()), Bytes::from(value.to_le_bytes().to_vec()));
        self.state.insert(key.clone(), value.clone());
        turn.writes.push((key, Some(value)));
        turn.state_bytes = Some(self.state.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum());
    }
}

fn answered(answer: GuestReply) -> TurnOutput {
    TurnOutput::without_effects(TurnResult::Replied(answer))
}
