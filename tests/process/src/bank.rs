//! Transfers between accounts of `examples/bank`: a load of them, and an audit of the accounts.
//!
//! The load's clients order transfers and watch them. The audit reads the statements of the accounts: it is independent
//! of what transfers and clients report, and may run at any moment, also during faults.

mod audit;
mod load;

use anyhow::{Context, Result, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use ostraca_client::{Client, Entity, MessageKind, Session};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

pub use self::audit::{Audit, Ends, Still};
pub use self::load::{TransferLoad, Transfers};
use crate::artifacts;
use crate::history::until_answered;

/// Number of accounts or transfers that are read concurrently.
const CONCURRENT: usize = 32;

/// The accounts, and the number of concurrent transfers between them.
#[derive(Clone, Copy, Debug)]
pub struct BankSize {
    /// Number of accounts.
    pub accounts: usize,
    /// Number of these accounts that are closed: the last ones.
    pub closed: usize,
    /// The cents in each open account at the beginning.
    pub cents: u64,
    /// Number of transfers that each client watches at the same time.
    pub concurrent: usize,
}

impl BankSize {
    /// The cents in all accounts and open transfers together.
    #[must_use]
    pub fn total(&self) -> u64 {
        (self.accounts - self.closed) as u64 * self.cents
    }
}

/// What a client orders.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The number of the transfer, from which its id is made.
    pub number: usize,
    /// The account that pays.
    pub from: usize,
    /// The account that is paid.
    pub to: usize,
    /// The amount.
    pub cents: u64,
    /// The deadline of the debit, in milliseconds.
    pub within_ms: Option<u64>,
    /// Milliseconds between the debit and the credit.
    pub clearing_ms: Option<u64>,
}

impl Order {
    /// The transfer.
    #[must_use]
    pub fn entity(&self) -> Entity {
        Entity::new("bank-transfer", format!("t{}", self.number))
    }

    /// Sends the order until it is answered.
    ///
    /// # Errors
    /// If it is not answered in time, or refused.
    pub async fn start(&self, session: &Session) -> Result<Status> {
        let body = json!({
            "from": account_id(self.from),
            "to": account_id(self.to),
            "cents": self.cents,
            "within_ms": self.within_ms,
            "clearing_ms": self.clearing_ms,
        });
        let options = until_answered(MessageKind::Command);
        let reply = session.send(&self.entity(), "start", body.to_string(), &options).await;
        Ok(serde_json::from_slice(&reply.with_context(|| format!("start {self:?}"))?.body)?)
    }

    /// Asks the transfer how far it is.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn status(&self, session: &Session) -> Result<Status> {
        ask(session, &self.entity(), "status", "").await
    }
}

/// How far a transfer is: the states of the example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the example documents them")]
pub enum State {
    New,
    Open,
    Cancelling,
    Debited,
    Refunding,
    Done,
    Refused,
}

/// What a transfer answers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// How far it is.
    pub state: State,
    /// Why it was refused, or is about to be.
    pub reason: Option<String>,
}

impl Status {
    /// Whether the transfer has ended.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self.state, State::Done | State::Refused)
    }
}

/// The id of an account.
#[must_use]
pub fn account_id(number: usize) -> String {
    format!("a{number}")
}

/// An account.
#[must_use]
pub fn account(number: usize) -> Entity {
    Entity::new("bank-account", account_id(number))
}

/// Deploys both types of the example as shipped.
///
/// # Errors
/// The node's error.
pub async fn deploy_bank(client: &Client) -> Result<()> {
    for part in ["account", "transfer"] {
        let manifest = artifacts::manifest(&format!("bank/{part}"))?;
        client.deploy(&manifest, artifacts::component(&format!("bank-{part}"))?, None).await?;
    }
    Ok(())
}

/// Opens the accounts, puts money into them, and closes those that are to be closed.
///
/// # Errors
/// The first refusal.
pub async fn open_accounts(client: &Client, size: BankSize) -> Result<()> {
    let session = client.session();
    let open = async |number: usize| {
        let closed = number >= size.accounts - size.closed;
        let methods: &[(&str, String)] = match closed {
            true => &[("open", String::new()), ("close", String::new())],
            false => &[("open", String::new()), ("deposit", size.cents.to_string())],
        };
        for (method, body) in methods {
            let options = until_answered(MessageKind::Command);
            session.send(&account(number), method, body.clone(), &options).await?;
        }
        anyhow::Ok(())
    };
    let opening = futures::stream::iter(0..size.accounts).map(open).buffer_unordered(CONCURRENT);
    opening.try_collect::<()>().await.context("open the accounts")
}

/// Fails if a tell of the bank has become a dead letter.
///
/// # Errors
/// The first dead letter.
pub async fn check_no_dead_letters(client: &Client) -> Result<()> {
    for part in ["bank-account", "bank-transfer"] {
        let request =
            ostraca_client::DeadLettersRequest { r#type: part.into(), ..Default::default() };
        let letters = client.dead_letters(request).await?.dead_letters;
        ensure!(letters.is_empty(), "dead letters: {letters:?}");
    }
    Ok(())
}

/// Sends a query until it is answered.
async fn ask<T: DeserializeOwned>(
    session: &Session,
    entity: &Entity,
    method: &str,
    body: impl Into<bytes::Bytes>,
) -> Result<T> {
    let options = until_answered(MessageKind::Query);
    let reply = session.send(entity, method, body, &options).await;
    Ok(serde_json::from_slice(&reply.with_context(|| format!("{method} of {entity}"))?.body)?)
}
