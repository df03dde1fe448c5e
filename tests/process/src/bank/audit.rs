//! An audit of the accounts' statements.
//!
//! A statement only grows, so what it has shown must remain. A pass reads the new lines of every account, one after the
//! other; meanwhile money moves. Two rules hold at any moment all the same. No transfer has a second debit, or a second
//! credit or refund. And if one pass shows a credit or a refund, the next pass shows its debit, which came before it.
//!
//! The sum of all money can only be read while nothing moves: if a pass finds no new line, every account was as it is
//! from the end of the pass before to the beginning of this one ([`Audit::wait_still`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use ostraca_client::Session;
use serde::Deserialize;
use serde_json::json;

use super::{CONCURRENT, Order, State, Status, Transfers, account, account_id, ask};

/// Number of lines that a statement keeps.
const KEPT: u64 = 1_000;
/// A generous bound on the time until nothing moves.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Booking {
    Deposit,
    Debit,
    Credit,
    Refund,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Line {
    number: u64,
    booking: Booking,
    cents: u64,
    balance: u64,
    transfer: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Statement {
    cents: u64,
    lines: Vec<Line>,
    more: bool,
}

/// What was read of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    lines: u64,
    cents: u64,
}

/// What the statements show of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Booked {
    debited: bool,
    credited: bool,
    refunded: bool,
}

impl Booked {
    /// Whether the money has left the first account and has arrived nowhere.
    fn in_flight(self) -> bool {
        self.debited && !self.credited && !self.refunded
    }
}

/// The bank while nothing moves.
#[derive(Clone, Copy, Debug)]
pub struct Still {
    /// The sum of all balances, in cents.
    pub balances: u64,
    /// The amount of the open transfers that have been debited and neither credited nor refunded.
    pub in_flight: u64,
    /// Number of these transfers.
    pub open: usize,
}

/// How all transfers have ended.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// Number of transfers whose money has reached the second account.
    pub done: usize,
    /// Number of the others, by reason.
    pub refused: BTreeMap<String, usize>,
    /// Number of transfers that were debited and got their money back.
    pub refunded: usize,
}

/// What has been read so far.
pub struct Audit {
    session: Session,
    transfers: Arc<Transfers>,
    accounts: Vec<Seen>,
    booked: BTreeMap<usize, Booked>,
    /// Transfers that the last pass has shown as credited or refunded, but not as debited.
    without_debit: Vec<usize>,
    passes: u64,
}

impl Audit {
    /// An audit that has read nothing yet.
    #[must_use]
    pub fn new(session: Session, transfers: Arc<Transfers>) -> Self {
        let accounts = vec![Seen::default(); transfers.size().accounts];
        let booked = BTreeMap::new();
        Self { session, transfers, accounts, booked, without_debit: Vec::new(), passes: 0 }
    }

    /// Number of passes so far.
    #[must_use]
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// Number of lines read so far.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.accounts.iter().map(|seen| seen.lines).sum()
    }

    /// Reads the new lines of every account, and returns how many there were.
    ///
    /// # Errors
    /// The first violation.
    pub async fn pass(&mut self) -> Result<usize> {
        let earlier = std::mem::take(&mut self.without_debit);
        let session = self.session.clone();
        let reads: Vec<_> = self.accounts.iter().map(|seen| seen.lines).enumerate().collect();
        let read =
            async |(number, first)| anyhow::Ok((number, read(&session, number, first).await?));
        let mut pages = futures::stream::iter(reads).map(read).buffer_unordered(CONCURRENT);
        let mut count = 0;
        while let Some((number, (lines, cents))) = pages.try_next().await? {
            count += lines.len();
            for line in lines {
                self.apply(number, &line)?;
            }
            let seen = &self.accounts[number];
            ensure!(seen.cents == cents, "a{number} holds {cents}, its statement {}", seen.cents);
        }
        for number in earlier {
            let booked = self.booked.get(&number).copied().unwrap_or_default();
            ensure!(booked.debited, "t{number} was never debited: {booked:?}");
        }
        self.passes += 1;
        Ok(count)
    }

    fn apply(&mut self, number: usize, line: &Line) -> Result<()> {
        let what = || format!("a{number}, {line:?}");
        let seen = &mut self.accounts[number];
        ensure!(line.number == seen.lines, "line {} of {} is missing", seen.lines, what());
        let balance = match line.booking {
            Booking::Debit => seen.cents.checked_sub(line.cents),
            _ => seen.cents.checked_add(line.cents),
        };
        ensure!(balance == Some(line.balance), "{}: the balance was {}", what(), seen.cents);
        *seen = Seen { lines: line.number + 1, cents: line.balance };
        let Some(transfer) = &line.transfer else {
            ensure!(line.booking == Booking::Deposit && line.number == 0, "{}", what());
            return Ok(());
        };
        let transfer: usize = transfer.trim_start_matches('t').parse().with_context(what)?;
        let order = self.transfers.order(transfer).with_context(what)?;
        let account = if line.booking == Booking::Credit { order.to } else { order.from };
        ensure!((account, order.cents) == (number, line.cents), "{} of {order:?}", what());
        let booked = self.booked.entry(transfer).or_default();
        let twice = match line.booking {
            Booking::Deposit => true,
            Booking::Debit => std::mem::replace(&mut booked.debited, true),
            Booking::Credit => std::mem::replace(&mut booked.credited, true) || booked.refunded,
            Booking::Refund => std::mem::replace(&mut booked.refunded, true) || booked.credited,
        };
        ensure!(!twice, "{} after {booked:?}", what());
        if !booked.debited {
            self.without_debit.push(transfer);
        }
        Ok(())
    }

    /// Waits until nothing moves, and adds up all money. Transfers may be open meanwhile, if they wait for their
    /// clearing time.
    ///
    /// # Errors
    /// If the sum is not what was deposited; any other violation; or that money is still moving after a generous
    /// timeout.
    pub async fn wait_still(&mut self) -> Result<Still> {
        let until = Instant::now() + LIMIT;
        self.pass().await?;
        loop {
            let open = self.transfers.open();
            let statuses = statuses(&self.session, &open).await?;
            let new_lines = self.pass().await?;
            let moving = match new_lines {
                0 => statuses.iter().find(|(order, status)| !self.agrees(order, status)),
                _ => statuses.first(),
            };
            if new_lines == 0 && moving.is_none() {
                return self.add_up(statuses);
            }
            ensure!(Instant::now() < until, "money is still moving: {new_lines} lines, {moving:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether a transfer and the statements agree. While a tell is on its way, they may not.
    fn agrees(&self, order: &Order, status: &Status) -> bool {
        let booked = self.booked.get(&order.number).copied().unwrap_or_default();
        let expected = match status.state {
            State::New => Booked::default(),
            // Another tell must follow at once.
            State::Open | State::Cancelling | State::Refunding => return false,
            State::Debited => Booked { debited: true, ..Booked::default() },
            State::Done => Booked { debited: true, credited: true, refunded: false },
            State::Refused => {
                Booked { debited: booked.debited, credited: false, refunded: booked.debited }
            }
        };
        booked == expected
    }

    fn add_up(&self, statuses: Vec<(Order, Status)>) -> Result<Still> {
        let mut still = Still { balances: 0, in_flight: 0, open: 0 };
        for (order, status) in statuses {
            if status.state == State::Debited {
                still.in_flight += order.cents;
                still.open += 1;
            } else if status.is_final() {
                self.transfers.note_end(order.number, status);
            }
        }
        still.balances = self.accounts.iter().map(|seen| seen.cents).sum();
        let (total, sum) = (self.transfers.size().total(), still.balances + still.in_flight);
        ensure!(sum == total, "{total} cents were deposited, and there are {sum}: {still:?}");
        let in_flight = self.booked.values().filter(|booked| booked.in_flight()).count();
        ensure!(in_flight == still.open, "{in_flight} transfers are in flight: {still:?}");
        Ok(still)
    }

    /// Waits until every transfer has ended, and checks the bank: reads all transfers again, and all statements from
    /// their first line.
    ///
    /// # Errors
    /// The first violation.
    pub async fn finish(&mut self) -> Result<Ends> {
        let until = Instant::now() + LIMIT;
        while self.wait_still().await?.open > 0 {
            ensure!(Instant::now() < until, "some do not end: {:?}", self.transfers.open());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let ends = self.transfers.ends();
        let orders: Vec<_> = ends.iter().map(|(order, _)| *order).collect();
        let mut counts = Ends::default();
        for (order, status) in statuses(&self.session, &orders).await? {
            let booked = self.booked.get(&order.number).copied().unwrap_or_default();
            let text = || format!("{order:?} is {status:?}, {booked:?}");
            ensure!(status.is_final() && self.agrees(&order, &status), "{}", text());
            ensure!(ends[order.number].1.as_ref() == Some(&status), "{} and changed", text());
            ensure!((status.state == State::Done) == status.reason.is_none(), "{}", text());
            counts.refunded += usize::from(booked.refunded);
            match status.reason {
                None => counts.done += 1,
                Some(reason) => *counts.refused.entry(reason).or_default() += 1,
            }
        }
        if self.accounts.iter().any(|seen| seen.lines > KEPT) {
            return Ok(counts);
        }
        let mut again = Audit::new(self.session.clone(), Arc::clone(&self.transfers));
        again.pass().await?;
        ensure!(again.pass().await? == 0, "money moves after the end");
        let same = again.accounts == self.accounts && again.booked == self.booked;
        ensure!(same, "a statement shows something else than before");
        Ok(counts)
    }
}

/// The balance of an account, and its lines from `first`.
async fn read(session: &Session, number: usize, first: u64) -> Result<(Vec<Line>, u64)> {
    let mut lines = Vec::new();
    loop {
        let body = json!({ "first": first + lines.len() as u64 });
        let page: Statement = ask(session, &account(number), "statement", body.to_string()).await?;
        ensure!(!page.more || !page.lines.is_empty(), "{}: an empty page", account_id(number));
        lines.extend(page.lines);
        if !page.more {
            return Ok((lines, page.cents));
        }
    }
}

async fn statuses(session: &Session, orders: &[Order]) -> Result<Vec<(Order, Status)>> {
    let ask = |order: &Order| {
        let order = *order;
        async move { anyhow::Ok((order, order.status(session).await?)) }
    };
    futures::stream::iter(orders).map(ask).buffered(CONCURRENT).try_collect().await
}
