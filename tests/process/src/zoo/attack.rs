//! An attack, and how its rounds end.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ostraca_client::{CallOptions, Client, Entity};

/// A turn that ends with a result.
pub const RESULT: &str = "result";
/// How many entities take turns.
const ENTITIES: u64 = 100;
/// The timeout of one call.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An attack: entities of `misbehaving` that get the same message again and again.
#[derive(Clone, Debug)]
pub struct GuestAttack {
    /// Its name in results.
    pub name: &'static str,
    /// The host functions that it overuses.
    pub functions: &'static str,
    /// How its turns may end: [`RESULT`], or the code of a limit.
    pub ends: &'static [&'static str],
    pub(super) id: &'static str,
    pub(super) method: &'static str,
    /// The bodies, which alternate from round to round.
    pub(super) bodies: [Bytes; 2],
}

impl GuestAttack {
    /// Number of rounds with different messages.
    #[must_use]
    pub fn kinds(&self) -> u64 {
        if self.bodies[0] == self.bodies[1] { 1 } else { 2 }
    }

    /// Runs one round, and returns how it ended: [`RESULT`], or the code.
    pub async fn round(&self, client: &Client, round: u64) -> String {
        let body = self.bodies[(round % 2) as usize].clone();
        let entity = Entity::new("misbehaving", format!("{}-{}", self.id, round % ENTITIES));
        let options = CallOptions { timeout: TIMEOUT, ..CallOptions::default() };
        match client.session().send(&entity, self.method, body, &options).await {
            Ok(_) => RESULT.into(),
            Err(error) => error.code().to_owned(),
        }
    }
}

/// Counts how rounds ended.
#[derive(Debug, Default)]
pub struct Endings(Mutex<BTreeMap<String, u64>>);

impl Endings {
    /// Counts one round.
    pub fn add(&self, ending: String) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(ending).or_default() += 1;
    }

    /// All endings with their counts, as text.
    #[must_use]
    pub fn text(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let each = all.iter().map(|(ending, count)| format!("{ending} {count}"));
        each.collect::<Vec<_>>().join(", ")
    }
}
