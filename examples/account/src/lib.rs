//! An account with deposits, withdrawals that may be refused, and a bounded history.
//!
//! The state consists of several keys, so a turn reads and writes only what it needs, however long the history is:
//!
//! ```text
//! balance              the balance in cents
//! overdraft            how many cents the balance may go below zero
//! history/next         the number of the next entry
//! history/entry/…      the last entries; their numbers have 20 digits, so that keys sort like numbers
//! ```
//!
//! ```text
//! ostraca send account/alice deposit 500
//! ostraca send account/alice withdraw 900         # refused: insufficient-funds
//! ostraca send account/alice history '{"limit":10}'
//! ```

use std::fmt;

use ostraca_sdk::{ApplicationError, context, entity, log, state};
use serde::{Deserialize, Serialize};

/// How many entries are kept. Beyond this, each new entry replaces the oldest.
const HISTORY: u64 = 100;

/// The maximum number of entries that one call of `history` returns.
const PAGE: u32 = 50;

const ENTRIES: &str = "history/entry/";

/// The entity. It has no fields: its state is in its keys.
#[derive(Debug, Default)]
pub struct Account;

/// Why an account refuses a message.
#[derive(Debug, PartialEq, Eq, ApplicationError)]
pub enum Refused {
    /// The balance and the overdraft do not cover the withdrawal.
    InsufficientFunds {
        /// How many cents could be withdrawn.
        available: i64,
    },
    /// The amount is zero, negative, or too large.
    InvalidAmount,
    /// The overdraft is negative or above one million.
    InvalidOverdraft,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::InsufficientFunds { available } => {
                write!(f, "only {available} cents can be withdrawn")
            }
            Refused::InvalidAmount => f.write_str(
                "an amount must be at least one cent, and the balance must not overflow",
            ),
            Refused::InvalidOverdraft => {
                f.write_str("an overdraft must be between 0 and 1,000,000 cents")
            }
        }
    }
}

/// One entry of the history.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// In cents; negative for a withdrawal.
    pub amount: i64,
    /// The balance afterwards, in cents.
    pub balance: i64,
    /// Who sent the message.
    pub by: String,
}

/// A page of the history, oldest entry first.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The `cursor` for the next page; `None` at the end.
    pub next: Option<String>,
}

#[entity(state = "keys")]
impl Account {
    /// Deposits an amount in cents and returns the new balance.
    ///
    /// # Errors
    /// `invalid-amount`.
    #[message]
    pub fn deposit(&mut self, cents: i64) -> Result<i64, Refused> {
        positive(cents)?;
        book(cents)
    }

    /// Withdraws an amount in cents and returns the new balance.
    ///
    /// # Errors
    /// `insufficient-funds`, `invalid-amount`: nothing is withdrawn.
    #[message]
    pub fn withdraw(&mut self, cents: i64) -> Result<i64, Refused> {
        positive(cents)?;
        let overdraft: i64 = state::get("overdraft").unwrap_or_default();
        // Updates the balance before the check: a refusal discards everything that the turn wrote.
        let balance = book(-cents)?;
        if balance < -overdraft {
            log::info!("refused a withdrawal of {cents}");
            return Err(Refused::InsufficientFunds { available: balance + cents + overdraft });
        }
        Ok(balance)
    }

    /// Returns the balance in cents.
    #[message]
    pub fn balance(&self) -> i64 {
        state::get("balance").unwrap_or_default()
    }

    /// Sets how many cents the balance may go below zero.
    ///
    /// # Errors
    /// `invalid-overdraft`, if it is negative or above one million.
    #[message]
    pub fn overdraft(&mut self, cents: i64) -> Result<(), Refused> {
        if !(0..=1_000_000).contains(&cents) {
            return Err(Refused::InvalidOverdraft);
        }
        state::set("overdraft", &cents);
        Ok(())
    }

    /// Returns the last entries, one page at a time, oldest first.
    #[message]
    pub fn history(&self, limit: Option<u32>, cursor: Option<String>) -> History {
        let limit = limit.unwrap_or(PAGE).clamp(1, PAGE) as usize;
        let mut rest = state::list_after(ENTRIES, cursor);
        let mut entries = Vec::new();
        let mut last = None;
        for (key, entry) in rest.by_ref().take(limit) {
            entries.push(entry);
            last = Some(key);
        }
        History { entries, next: if rest.next().is_some() { last } else { None } }
    }
}

fn positive(cents: i64) -> Result<(), Refused> {
    if cents > 0 { Ok(()) } else { Err(Refused::InvalidAmount) }
}

fn book(amount: i64) -> Result<i64, Refused> {
    let before: i64 = state::get("balance").unwrap_or_default();
    let balance = before.checked_add(amount).ok_or(Refused::InvalidAmount)?;
    state::set("balance", &balance);

    let number: u64 = state::get("history/next").unwrap_or_default();
    let by = context::current_message().map(|message| message.principal).unwrap_or_default();
    state::set(&entry_key(number), &Entry { amount, balance, by });
    state::set("history/next", &(number + 1));
    if let Some(oldest) = number.checked_sub(HISTORY) {
        state::delete(&entry_key(oldest));
    }
    Ok(balance)
}

fn entry_key(number: u64) -> String {
    format!("{ENTRIES}{number:020}")
}

#[cfg(test)]
mod tests {
    use ostraca_sdk::serde_json::{from_value, json};
    use ostraca_sdk::testing::{self, MessageError, call};
    use ostraca_sdk::{log, state};

    use super::{Account, History};

    fn history(body: ostraca_sdk::serde_json::Value) -> History {
        from_value(call::<Account>("history", body).unwrap()).unwrap()
    }

    #[test]
    fn a_refused_withdrawal_changes_no_key() {
        assert_eq!(call::<Account>("deposit", 500), Ok(json!(500)));
        let before = state::list_raw("", 1000, None);
        let refused = call::<Account>("withdraw", 900);
        assert_eq!(
            refused,
            Err(MessageError::Application {
                code: "insufficient-funds".to_owned(),
                message: "only 500 cents can be withdrawn".to_owned()
            })
        );
        assert_eq!(state::list_raw("", 1000, None), before);
        assert_eq!(
            testing::take_logs(),
            [(log::Level::Info, "refused a withdrawal of 900".to_owned())]
        );
    }

    #[test]
    fn the_overdraft_widens_what_can_be_withdrawn() {
        assert_eq!(call::<Account>("overdraft", 100), Ok(json!(null)));
        assert_eq!(call::<Account>("withdraw", 100), Ok(json!(-100)));
        assert!(call::<Account>("withdraw", 1).is_err());
        assert!(call::<Account>("deposit", 0).is_err());
        assert_eq!(call::<Account>("balance", ()), Ok(json!(-100)));
    }

    #[test]
    fn the_history_is_bounded_and_paged() {
        testing::set_principal("alice");
        for _ in 0..130 {
            call::<Account>("deposit", 1).unwrap();
        }
        let first = history(json!({ "limit": 40 }));
        assert_eq!(first.entries.len(), 40);
        assert_eq!((first.entries[0].balance, first.entries[0].by.as_str()), (31, "alice"));
        let second = history(json!({ "cursor": first.next }));
        assert_eq!((second.entries.len(), second.entries[0].balance), (50, 71));
        let third = history(json!({ "cursor": second.next }));
        assert_eq!((third.entries.len(), third.next), (10, None));
    }
}
