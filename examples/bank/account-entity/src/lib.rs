//! An account of the bank: a balance, and a statement with a line for each booking.
//!
//! Only transfers (`examples/bank/transfer`) may debit, credit and refund. They send tells, and the account answers
//! each one with a tell. "Insufficient funds" is such an answer, not an application error: an error would make the tell
//! a dead letter, and the transfer would never learn of it.
//!
//! A tell runs exactly once, so an account needs no list of the transfers that it has already handled.

use std::fmt;

use ostraca_sdk::messaging::Entity;
use ostraca_sdk::serde_json::json;
use ostraca_sdk::{ApplicationError, context, entity, state};
use serde::{Deserialize, Serialize};

/// The highest balance in cents that a deposit or a credit may lead to.
const MAX_CENTS: u64 = 1_000_000_000_000_000;

/// Number of lines that the statement keeps. Beyond it, each new line replaces the oldest.
const LINES: u64 = 1_000;

/// The maximum number of lines that one call of `statement` returns.
const PAGE: usize = 100;

/// Prefix of the keys with the lines. Their numbers have 20 digits, so that keys sort like numbers.
const LINE: &str = "line/";

/// The state of one account. The lines of its statement have keys of their own, so a booking writes only one of them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Account {
    /// A new account is closed.
    open: bool,
    cents: u64,
    /// The number of the next line.
    next_line: u64,
}

/// Why an account refuses a message of a client.
#[derive(Debug, PartialEq, Eq, ApplicationError)]
pub enum Refused {
    /// The account is closed.
    AccountClosed,
    /// The account to be closed holds money.
    AccountNotEmpty,
    /// The amount is zero, or the balance would be too high.
    InvalidAmount,
    /// Only transfers may debit, credit and refund.
    NotATransfer,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::AccountClosed => f.write_str("the account is closed"),
            Refused::AccountNotEmpty => f.write_str("the account holds money"),
            Refused::InvalidAmount => {
                write!(
                    f,
                    "the amount must be at least one cent, and the balance at most {MAX_CENTS}"
                )
            }
            Refused::NotATransfer => f.write_str("only transfers may debit, credit and refund"),
        }
    }
}

/// What a line of the statement records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Booking {
    /// Money from outside the bank.
    Deposit,
    /// Money that left for another account.
    Debit,
    /// Money from another account.
    Credit,
    /// Money that had left, and could not be credited.
    Refund,
}

/// A line of the statement.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The lines of an account are numbered from 0.
    pub number: u64,
    /// What happened.
    pub booking: Booking,
    /// The amount.
    pub cents: u64,
    /// The balance afterwards, in cents.
    pub balance: u64,
    /// The transfer's id; `None` for a deposit.
    pub transfer: Option<String>,
}

/// The balance, and a page of the statement.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Whether the account is open.
    pub open: bool,
    /// The balance.
    pub cents: u64,
    /// At most 100 lines, oldest first.
    pub lines: Vec<Line>,
    /// Whether there are further lines.
    pub more: bool,
}

#[entity(type = "bank-account", export = false)]
impl Account {
    /// Opens the account.
    #[message]
    pub fn open(&mut self) {
        self.open = true;
    }

    /// Closes the account. From then on, it accepts only refunds.
    ///
    /// # Errors
    /// `account-not-empty`.
    #[message]
    pub fn close(&mut self) -> Result<(), Refused> {
        if self.cents > 0 {
            return Err(Refused::AccountNotEmpty);
        }
        self.open = false;
        Ok(())
    }

    /// Adds money from outside the bank, and returns the new balance.
    ///
    /// # Errors
    /// `account-closed`, `invalid-amount`.
    #[message]
    pub fn deposit(&mut self, cents: u64) -> Result<u64, Refused> {
        if !self.open {
            return Err(Refused::AccountClosed);
        }
        let sum = self.cents.checked_add(cents).filter(|sum| cents > 0 && *sum <= MAX_CENTS);
        self.book(Booking::Deposit, cents, sum.ok_or(Refused::InvalidAmount)?, None);
        Ok(self.cents)
    }

    /// Returns the balance in cents.
    #[message]
    pub fn balance(&self) -> u64 {
        self.cents
    }

    /// Returns the balance and a page of the statement, from the line `first`.
    #[message]
    pub fn statement(&self, first: Option<u64>) -> Statement {
        let after = first.and_then(|first| first.checked_sub(1)).map(line_key);
        let mut rest = state::list_after(LINE, after).map(|(_, line)| line);
        let lines: Vec<Line> = rest.by_ref().take(PAGE).collect();
        Statement { open: self.open, cents: self.cents, lines, more: rest.next().is_some() }
    }

    /// Takes money for a transfer, or answers why not.
    ///
    /// # Errors
    /// `not-a-transfer`.
    #[message]
    pub fn debit(&mut self, transfer: String, cents: u64) -> Result<(), Refused> {
        only_transfers()?;
        let refused = match self.cents.checked_sub(cents) {
            _ if !self.open => Some("account-closed"),
            None => Some("insufficient-funds"),
            Some(rest) => {
                self.book(Booking::Debit, cents, rest, Some(&transfer));
                None
            }
        };
        answer(transfer, "debited", &json!({ "refused": refused }));
        Ok(())
    }

    /// Adds a transfer's money, or answers why not.
    ///
    /// # Errors
    /// `not-a-transfer`.
    #[message]
    pub fn credit(&mut self, transfer: String, cents: u64) -> Result<(), Refused> {
        only_transfers()?;
        let refused = match self.cents.checked_add(cents) {
            _ if !self.open => Some("account-closed"),
            Some(sum) if sum <= MAX_CENTS => {
                self.book(Booking::Credit, cents, sum, Some(&transfer));
                None
            }
            _ => Some("balance-too-high"),
        };
        answer(transfer, "credited", &json!({ "refused": refused }));
        Ok(())
    }

    /// Takes a transfer's money back. A refund is never refused: it must not get lost.
    ///
    /// # Errors
    /// `not-a-transfer`.
    #[message]
    pub fn refund(&mut self, transfer: String, cents: u64) -> Result<(), Refused> {
        only_transfers()?;
        self.book(Booking::Refund, cents, self.cents + cents, Some(&transfer));
        answer(transfer, "refunded", &());
        Ok(())
    }
}

impl Account {
    fn book(&mut self, booking: Booking, cents: u64, balance: u64, transfer: Option<&str>) {
        let number = self.next_line;
        let line = Line { number, booking, cents, balance, transfer: transfer.map(str::to_owned) };
        state::set(&line_key(number), &line);
        if let Some(oldest) = number.checked_sub(LINES) {
            state::delete(&line_key(oldest));
        }
        self.cents = balance;
        self.next_line += 1;
    }
}

fn line_key(number: u64) -> String {
    format!("{LINE}{number:020}")
}

/// The manifest says who may send to the type; this says who may call these methods.
fn only_transfers() -> Result<(), Refused> {
    let sender = context::current_message().map(|message| message.principal);
    if sender.as_deref() == Some("entity/bank-transfer") {
        Ok(())
    } else {
        Err(Refused::NotATransfer)
    }
}

fn answer(transfer: String, method: &str, arguments: &impl Serialize) {
    Entity::new("bank-transfer", transfer).tell(method, arguments);
}

#[cfg(test)]
mod tests {
    use ostraca_sdk::serde_json::{from_value, json};
    use ostraca_sdk::testing::{self, MessageError, call};

    use super::{Account, Booking, MAX_CENTS, Statement};

    fn open_with(cents: u64) {
        call::<Account>("open", ()).unwrap();
        call::<Account>("deposit", cents).unwrap();
        testing::set_principal("entity/bank-transfer");
    }

    /// Sends a transfer's command, and returns the answer: its method, and why the account refused.
    fn answer(method: &str, transfer: &str, cents: u64) -> (String, Option<String>) {
        call::<Account>(method, json!({ "transfer": transfer, "cents": cents })).unwrap();
        let tells = testing::take_tells();
        assert_eq!((tells.len(), tells[0].to.entity_type()), (1, "bank-transfer"));
        assert_eq!(tells[0].to.id(), transfer);
        let refused = tells[0].arguments()["refused"].as_str().map(str::to_owned);
        (tells[0].method.clone(), refused)
    }

    fn said(method: &str, refused: Option<&str>) -> (String, Option<String>) {
        (method.to_owned(), refused.map(str::to_owned))
    }

    fn statement(first: Option<u64>) -> Statement {
        from_value(call::<Account>("statement", json!({ "first": first })).unwrap()).unwrap()
    }

    #[test]
    fn bookings_are_answered_and_listed() {
        open_with(500);
        assert_eq!(answer("debit", "t1", 200), said("debited", None));
        assert_eq!(answer("credit", "t2", 50), said("credited", None));
        assert_eq!(answer("refund", "t1", 200), said("refunded", None));
        let all = statement(None);
        let lines: Vec<_> =
            all.lines.iter().map(|line| (line.booking, line.cents, line.balance)).collect();
        assert_eq!(
            lines,
            [
                (Booking::Deposit, 500, 500),
                (Booking::Debit, 200, 300),
                (Booking::Credit, 50, 350),
                (Booking::Refund, 200, 550)
            ]
        );
        assert_eq!((all.cents, all.more), (550, false));
        assert_eq!(statement(Some(2)).lines, all.lines[2..]);
    }

    #[test]
    fn a_refusal_is_an_answer_and_changes_nothing() {
        open_with(500);
        let before = statement(None);
        assert_eq!(answer("debit", "t1", 501), said("debited", Some("insufficient-funds")));
        assert_eq!(answer("credit", "t1", MAX_CENTS), said("credited", Some("balance-too-high")));
        assert_eq!(answer("credit", "t1", u64::MAX), said("credited", Some("balance-too-high")));
        assert_eq!(statement(None), before);
    }

    #[test]
    fn a_closed_account_accepts_only_refunds() {
        open_with(500);
        assert_eq!(answer("debit", "t1", 500), said("debited", None));
        call::<Account>("close", ()).unwrap();
        assert_eq!(answer("debit", "t2", 1), said("debited", Some("account-closed")));
        assert_eq!(answer("credit", "t3", 1), said("credited", Some("account-closed")));
        assert!(call::<Account>("deposit", 1).is_err());
        assert_eq!(answer("refund", "t1", 500), said("refunded", None));
        assert_eq!(call::<Account>("balance", ()), Ok(json!(500)));
        assert!(call::<Account>("close", ()).is_err());
    }

    #[test]
    fn clients_cannot_debit_credit_or_refund() {
        open_with(500);
        for sender in ["client/alice", "entity/bank-account"] {
            testing::set_principal(sender);
            for method in ["debit", "credit", "refund"] {
                let refused = call::<Account>(method, json!({ "transfer": "t1", "cents": 1 }));
                assert!(matches!(refused, Err(MessageError::Application { code, .. })
                    if code == "not-a-transfer"));
            }
        }
        assert_eq!(call::<Account>("balance", ()), Ok(json!(500)));
        assert_eq!(testing::take_tells(), []);
    }

    #[test]
    fn the_statement_is_bounded_and_paged() {
        open_with(500);
        for _ in 0..1_100 {
            call::<Account>("deposit", 1).unwrap();
        }
        let oldest = statement(None);
        assert_eq!((oldest.lines[0].number, oldest.lines.len(), oldest.more), (101, 100, true));
        let last = statement(Some(1_050));
        assert_eq!((last.lines.len(), last.more, last.cents), (51, false, 1_600));
        assert_eq!(last.lines[50].balance, 1_600);
    }
}
