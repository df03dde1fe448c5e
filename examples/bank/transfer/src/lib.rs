//! A transfer between two accounts: a saga of tells.
//!
//! ```text
//!              debit          credit
//!     open ───────────▶ debited ─────▶ done
//!      │  ╲ deadline       │ refused
//!      │   ▼               ▼
//!      │  cancelling ──▶ refunding
//!      ▼       │             │
//!     refused ◀┴─────────────┘
//! ```
//!
//! Each step is one turn: it stores the transfer's new state and sends the tell to an account, both or neither. The
//! account changes its balance and answers in one turn too. Tells run exactly once, so no step is lost or repeated,
//! whichever node dies.

use std::fmt;
use std::time::Duration;

use bank_account_entity::{Account, AccountRef};
use ostraca_sdk::{ApplicationError, context, entity, lifecycle, timers};
use serde::{Deserialize, Serialize};

/// How long the debit may take, unless the order says otherwise.
const DEADLINE: Duration = Duration::from_secs(3_600);

/// One transfer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Transfer {
    state: State,
    /// Why it was refused, or is about to be.
    reason: Option<String>,
    order: Option<Order>,
}

/// How far a transfer is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has no order yet.
    #[default]
    New,
    /// The debit was sent.
    Open,
    /// The debit was sent, and its answer came too late or is still missing: if it succeeds, it is refunded.
    Cancelling,
    /// The money has left the first account and has not reached the second one.
    Debited,
    /// The money is on its way back.
    Refunding,
    /// The money has reached the second account.
    Done,
    /// No money has moved, or it has returned.
    Refused,
}

/// What a client orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Order {
    from: String,
    to: String,
    cents: u64,
    clearing_ms: Option<u64>,
}

/// What `status` returns.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// How far it is. `done` and `refused` are final.
    pub state: State,
    /// Why it was refused, or is about to be.
    pub reason: Option<String>,
}

/// Why a transfer refuses a message.
#[derive(Debug, PartialEq, Eq, ApplicationError)]
pub enum Refused {
    /// The amount is zero.
    InvalidAmount,
    /// Both accounts are the same, or an id has an invalid length.
    InvalidAccount,
    /// The transfer has another order.
    AlreadyUsed,
    /// Only accounts answer.
    NotAnAccount,
    /// The transfer does not wait for this answer.
    UnexpectedAnswer {
        /// The transfer's state.
        state: State,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::InvalidAmount => f.write_str("the amount must be at least one cent"),
            Refused::InvalidAccount => f.write_str("a transfer needs two different accounts"),
            Refused::AlreadyUsed => f.write_str("this transfer has another order"),
            Refused::NotAnAccount => f.write_str("only accounts answer"),
            Refused::UnexpectedAnswer { state } => {
                write!(f, "the transfer is {state:?} and waits for no such answer")
            }
        }
    }
}

#[entity]
impl Transfer {
    /// Orders the transfer. The same order may be sent again, and changes nothing then.
    ///
    /// If the first account has not answered within `within_ms` (default: one hour), the transfer is cancelled. The
    /// second account is credited `clearing_ms` after the debit (default: 0).
    ///
    /// # Errors
    /// `invalid-amount`, `invalid-account`, `already-used`.
    #[message]
    pub fn start(
        &mut self,
        from: String,
        to: String,
        cents: u64,
        within_ms: Option<u64>,
        clearing_ms: Option<u64>,
    ) -> Result<Status, Refused> {
        let order = Order { from, to, cents, clearing_ms };
        match &self.order {
            Some(known) if *known == order => return Ok(self.status()),
            Some(_) => return Err(Refused::AlreadyUsed),
            None => order.check()?,
        }
        order.payer().debit(transfer_id(), order.cents).tell();
        let deadline = within_ms.map_or(DEADLINE, Duration::from_millis);
        timers::after("deadline", deadline).set();
        self.state = State::Open;
        self.order = Some(order);
        Ok(self.status())
    }

    /// Returns how far the transfer is.
    #[message]
    pub fn status(&self) -> Status {
        Status { state: self.state, reason: self.reason.clone() }
    }

    /// The first account was debited, or refused.
    ///
    /// # Errors
    /// `not-an-account`, `unexpected-answer`.
    #[message]
    pub fn debited(&mut self, refused: Option<String>) -> Result<(), Refused> {
        let order = self.expects_answer(&[State::Open, State::Cancelling])?;
        timers::cancel("deadline");
        match (self.state, refused) {
            (State::Open, None) => {
                order.credit();
                self.state = State::Debited;
            }
            (_, None) => {
                order.payer().refund(transfer_id(), order.cents).tell();
                self.state = State::Refunding;
            }
            (_, Some(reason)) => self.end(State::Refused, Some(reason)),
        }
        Ok(())
    }

    /// The second account was credited, or refused. Then the first account gets its money back.
    ///
    /// # Errors
    /// `not-an-account`, `unexpected-answer`.
    #[message]
    pub fn credited(&mut self, refused: Option<String>) -> Result<(), Refused> {
        let order = self.expects_answer(&[State::Debited])?;
        if let Some(reason) = refused {
            order.payer().refund(transfer_id(), order.cents).tell();
            self.state = State::Refunding;
            self.reason = Some(reason);
        } else {
            self.end(State::Done, None);
        }
        Ok(())
    }

    /// The first account has its money back.
    ///
    /// # Errors
    /// `not-an-account`, `unexpected-answer`.
    #[message]
    pub fn refunded(&mut self) -> Result<(), Refused> {
        self.expects_answer(&[State::Refunding])?;
        let reason = self.reason.take();
        self.end(State::Refused, reason);
        Ok(())
    }

    /// The first account has not answered in time. The debit may be under way, or done, so the transfer is not refused
    /// yet: it waits for the answer, and returns the money if there is any.
    #[timer]
    fn deadline(&mut self) {
        if self.state == State::Open {
            self.state = State::Cancelling;
            self.reason = Some("deadline-passed".to_owned());
        }
    }
}

impl Transfer {
    /// Returns the order, if the message is an answer of an account that one of these states waits for. Each answer
    /// arrives exactly once, so another state means that there is a mistake in this program. The refusal then makes the
    /// answer a dead letter, which operators see.
    fn expects_answer(&self, states: &[State]) -> Result<Order, Refused> {
        let sender = context::current_message().map(|message| message.principal);
        if sender.as_deref() != Some("entity/bank-account") {
            return Err(Refused::NotAnAccount);
        }
        let order = self.order.clone().filter(|_| states.contains(&self.state));
        order.ok_or(Refused::UnexpectedAnswer { state: self.state })
    }

    fn end(&mut self, state: State, reason: Option<String>) {
        self.state = state;
        self.reason = reason;
        // It gets no further messages, except for queries.
        lifecycle::passivate();
    }
}

impl Order {
    fn check(&self) -> Result<(), Refused> {
        let is_id = |id: &String| (1..=512).contains(&id.len());
        if self.cents == 0 {
            return Err(Refused::InvalidAmount);
        }
        if self.from == self.to || !is_id(&self.from) || !is_id(&self.to) {
            return Err(Refused::InvalidAccount);
        }
        Ok(())
    }

    fn payer(&self) -> AccountRef {
        Account::at(&self.from)
    }

    fn credit(&self) {
        let credit = Account::at(&self.to).credit(transfer_id(), self.cents);
        match self.clearing_ms {
            None => credit.tell(),
            Some(ms) => credit.tell_after("credit", Duration::from_millis(ms)),
        }
    }
}

/// Tells an account which transfer to answer.
fn transfer_id() -> String {
    context::identity().id
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ostraca_sdk::serde_json::{Value, json};
    use ostraca_sdk::testing::{self, MessageError, SentTell, call};

    use super::Transfer;

    fn start(more: Value) -> Result<Value, MessageError> {
        testing::set_identity("bank-transfer", "t1");
        testing::set_principal("client/alice");
        let mut order = json!({ "from": "alice", "to": "bob", "cents": 5 });
        for (name, value) in more.as_object().into_iter().flatten() {
            order[name] = value.clone();
        }
        call::<Transfer>("start", order)
    }

    /// An account answers.
    fn answer(method: &str, refused: Option<&str>) -> Result<Value, MessageError> {
        testing::set_principal("entity/bank-account");
        match method {
            "refunded" => call::<Transfer>(method, ()),
            _ => call::<Transfer>(method, json!({ "refused": refused })),
        }
    }

    /// The state, the reason, and the tells sent since the last call, as `ACCOUNT.METHOD`.
    fn seen() -> (String, Option<String>, Vec<String>) {
        let status = call::<Transfer>("status", ()).unwrap();
        let text = |name: &str| status[name].as_str().map(str::to_owned);
        let shown = |tell: SentTell| {
            assert_eq!(tell.to.entity_type(), "bank-account");
            assert_eq!(tell.arguments(), json!({ "transfer": "t1", "cents": 5 }));
            format!("{}.{}", tell.to.id(), tell.method)
        };
        let tells = testing::take_tells().into_iter().map(shown).collect();
        (text("state").unwrap(), text("reason"), tells)
    }

    fn expect(state: &str, reason: Option<&str>, tells: &[&str]) {
        let tells = tells.iter().map(|tell| (*tell).to_owned()).collect();
        assert_eq!(seen(), (state.to_owned(), reason.map(str::to_owned), tells));
    }

    #[test]
    fn money_is_debited_then_credited() {
        start(json!({})).unwrap();
        expect("open", None, &["alice.debit"]);
        answer("debited", None).unwrap();
        expect("debited", None, &["bob.credit"]);
        answer("credited", None).unwrap();
        expect("done", None, &[]);
        testing::advance_time(Duration::from_secs(7_200));
        assert_eq!(testing::fire_timers::<Transfer>(), 0);
    }

    #[test]
    fn a_refused_debit_ends_the_transfer() {
        start(json!({})).unwrap();
        seen();
        answer("debited", Some("insufficient-funds")).unwrap();
        expect("refused", Some("insufficient-funds"), &[]);
    }

    #[test]
    fn a_refused_credit_is_refunded() {
        start(json!({})).unwrap();
        seen();
        answer("debited", None).unwrap();
        seen();
        answer("credited", Some("account-closed")).unwrap();
        expect("refunding", Some("account-closed"), &["alice.refund"]);
        answer("refunded", None).unwrap();
        expect("refused", Some("account-closed"), &[]);
    }

    #[test]
    fn a_debit_after_the_deadline_is_refunded() {
        start(json!({ "within_ms": 1_000 })).unwrap();
        seen();
        testing::advance_time(Duration::from_secs(1));
        assert_eq!(testing::fire_timers::<Transfer>(), 1);
        expect("cancelling", Some("deadline-passed"), &[]);
        answer("debited", None).unwrap();
        expect("refunding", Some("deadline-passed"), &["alice.refund"]);
        answer("refunded", None).unwrap();
        expect("refused", Some("deadline-passed"), &[]);
    }

    #[test]
    fn a_debit_refused_after_the_deadline_moves_nothing() {
        start(json!({ "within_ms": 1_000 })).unwrap();
        seen();
        testing::advance_time(Duration::from_secs(1));
        testing::fire_timers::<Transfer>();
        answer("debited", Some("insufficient-funds")).unwrap();
        expect("refused", Some("insufficient-funds"), &[]);
    }

    #[test]
    fn clearing_delays_the_credit() {
        start(json!({ "clearing_ms": 2_000 })).unwrap();
        seen();
        answer("debited", None).unwrap();
        expect("debited", None, &[]);
        testing::advance_time(Duration::from_secs(2));
        expect("debited", None, &["bob.credit"]);
    }

    #[test]
    fn the_same_order_again_changes_nothing() {
        start(json!({})).unwrap();
        seen();
        assert_eq!(start(json!({})), Ok(json!({ "state": "open", "reason": null })));
        expect("open", None, &[]);
        for other in [json!({ "cents": 6 }), json!({ "to": "carol" })] {
            let refused = start(other);
            assert!(matches!(refused, Err(MessageError::Application { code, .. })
                if code == "already-used"));
        }
    }

    #[test]
    fn invalid_orders_are_refused() {
        for (more, expected) in [
            (json!({ "cents": 0 }), "invalid-amount"),
            (json!({ "to": "alice" }), "invalid-account"),
            (json!({ "to": "" }), "invalid-account"),
            (json!({ "from": "x".repeat(513) }), "invalid-account"),
        ] {
            let refused = start(more);
            assert!(matches!(refused, Err(MessageError::Application { code, .. })
                if code == expected));
        }
        expect("new", None, &[]);
    }

    #[test]
    fn only_accounts_answer_and_each_answer_has_its_state() {
        start(json!({})).unwrap();
        seen();
        testing::set_principal("client/alice");
        let refused = call::<Transfer>("debited", json!({ "refused": null }));
        assert!(matches!(refused, Err(MessageError::Application { code, .. })
            if code == "not-an-account"));
        for method in ["credited", "refunded"] {
            let refused = answer(method, None);
            assert!(matches!(refused, Err(MessageError::Application { code, .. })
                if code == "unexpected-answer"));
        }
        expect("open", None, &[]);
    }
}
