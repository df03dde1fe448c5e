//! Clients that order transfers and watch each one until it has ended.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, Session};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{BankSize, Order, State, Status};
use crate::history::now;

/// Number of concurrent transfers in one session.
const PER_SESSION: usize = 32;
/// Each transfer whose number is a multiple of this is ordered by two messages at the same time, through two gateways: a
/// client that gets no answer may send its order again.
const SENT_TWICE: usize = 8;
/// How often a client asks a transfer how far it is.
const POLL: Duration = Duration::from_millis(400);
/// A generous bound on the time between the order of a transfer and its end.
const LIMIT: Duration = Duration::from_secs(120);

/// Every transfer of a load, shared by its clients, the audit and the test.
#[derive(Debug)]
pub struct Transfers {
    size: BankSize,
    known: Mutex<Known>,
    paused: AtomicBool,
    ended: AtomicBool,
}

#[derive(Debug)]
struct Known {
    rng: StdRng,
    all: Vec<Transfer>,
    /// The numbers of those whose end no client has seen.
    open: BTreeSet<usize>,
    failure: Option<String>,
}

#[derive(Debug)]
struct Transfer {
    order: Order,
    /// The client that ordered it.
    client: usize,
    /// When the order was sent.
    sent: u64,
    /// Whether the order was answered, and the client waits no longer for the end because of the clearing time.
    left: bool,
    end: Option<Status>,
}

impl Transfers {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size of the bank.
    #[must_use]
    pub fn size(&self) -> BankSize {
        self.size
    }

    /// Number of transfers that were ordered.
    #[must_use]
    pub fn ordered(&self) -> usize {
        self.known().all.len()
    }

    /// Number of transfers whose end was seen.
    #[must_use]
    pub fn ended(&self) -> usize {
        let known = self.known();
        known.all.len() - known.open.len()
    }

    /// A transfer's order, if it has one.
    #[must_use]
    pub fn order(&self, number: usize) -> Option<Order> {
        self.known().all.get(number).map(|transfer| transfer.order)
    }

    /// The orders of the transfers whose end was not seen.
    #[must_use]
    pub fn open(&self) -> Vec<Order> {
        let known = self.known();
        known.open.iter().map(|number| known.all[*number].order).collect()
    }

    /// How each transfer ended, with its order; `None` if its end was not seen.
    #[must_use]
    pub fn ends(&self) -> Vec<(Order, Option<Status>)> {
        self.known().all.iter().map(|it| (it.order, it.end.clone())).collect()
    }

    /// Number of transfers that were ordered before a moment and whose end was not seen, among those that `affected`
    /// selects by their order and client.
    #[must_use]
    pub fn in_doubt(&self, moment: u64, affected: impl Fn(&Order, usize) -> bool) -> usize {
        let known = self.known();
        let open = known.open.iter().map(|number| &known.all[*number]);
        open.filter(|it| it.sent < moment && affected(&it.order, it.client)).count()
    }

    /// Notes how a transfer ended.
    pub fn note_end(&self, number: usize, end: Status) {
        let mut known = self.known();
        known.open.remove(&number);
        if let Some(transfer) = known.all.get_mut(number) {
            transfer.end = Some(end);
        }
    }

    /// Adds the next order: mostly a small amount between two accounts.
    fn add(&self, client: usize) -> Order {
        let known = &mut *self.known();
        let rng = &mut known.rng;
        let from = rng.random_range(0..self.size.accounts);
        // Another account.
        let to = (from + rng.random_range(1..self.size.accounts)) % self.size.accounts;
        let mut order = Order {
            number: known.all.len(),
            from,
            to,
            cents: rng.random_range(1..=100),
            within_ms: None,
            clearing_ms: None,
        };
        match rng.random_range(0..20) {
            0 => order.cents += self.size.total(),
            1 | 2 => order.within_ms = Some(rng.random_range(20..2_000)),
            3 => order.clearing_ms = Some(rng.random_range(2_000..12_000)),
            _ => {}
        }
        known.open.insert(order.number);
        known.all.push(Transfer { order, client, sent: now(), left: false, end: None });
        order
    }

    fn leave(&self, number: usize) {
        if let Some(transfer) = self.known().all.get_mut(number) {
            transfer.left = true;
        }
    }

    fn waiting(&self) -> usize {
        let known = self.known();
        known.open.iter().filter(|number| !known.all[**number].left).count()
    }

    fn check(&self) -> Result<()> {
        match &self.known().failure {
            Some(failure) => Err(anyhow::anyhow!("{failure}")),
            None => Ok(()),
        }
    }
}

/// Clients that keep ordering transfers until they are stopped.
pub struct TransferLoad {
    transfers: Arc<Transfers>,
    clients: JoinSet<()>,
}

impl TransferLoad {
    /// Starts the load, distributed over the clients. It begins paused.
    #[must_use]
    pub fn start(clients: &[Client], seed: u64, size: BankSize) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let transfers = Arc::new(Transfers {
            size,
            known: Mutex::new(Known { rng, all: Vec::new(), open: BTreeSet::new(), failure: None }),
            paused: AtomicBool::new(true),
            ended: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        for (place, client) in clients.iter().enumerate() {
            let another = &clients[(place + 1) % clients.len()];
            let mut sessions = [client.session(), another.session()];
            for number in 0..size.concurrent {
                if number % PER_SESSION == PER_SESSION - 1 {
                    sessions = [client.session(), another.session()];
                }
                let (transfers, sessions) = (Arc::clone(&transfers), sessions.clone());
                tasks.spawn(async move {
                    if let Err(error) = order_transfers(&transfers, &sessions, place).await {
                        transfers.known().failure.get_or_insert(format!("{error:#}"));
                    }
                });
            }
        }
        Self { transfers, clients: tasks }
    }

    /// What is known of the transfers.
    #[must_use]
    pub fn transfers(&self) -> &Arc<Transfers> {
        &self.transfers
    }

    /// Lets the clients order transfers.
    pub fn resume(&self) {
        self.transfers.paused.store(false, Ordering::SeqCst);
    }

    /// Waits until this many more transfers have ended.
    ///
    /// # Errors
    /// If a client failed, or after a generous timeout.
    pub async fn progress(&self, more: usize) -> Result<()> {
        let (goal, until) = (self.transfers.ended() + more, Instant::now() + LIMIT);
        while self.transfers.ended() < goal {
            self.transfers.check()?;
            let missing = goal - self.transfers.ended();
            ensure!(Instant::now() < until, "{missing} of {more} transfers have not ended");
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Stops ordering, and waits until the end of every transfer without a clearing time.
    ///
    /// # Errors
    /// If a client failed, or after a generous timeout.
    pub async fn pause(&self) -> Result<()> {
        self.transfers.paused.store(true, Ordering::SeqCst);
        let until = Instant::now() + LIMIT;
        while self.transfers.waiting() > 0 {
            self.transfers.check()?;
            let open = self.transfers.open();
            ensure!(Instant::now() < until, "{} transfers do not end: {open:?}", open.len());
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Ends the clients of a paused load.
    ///
    /// # Errors
    /// If a client failed.
    pub async fn end(mut self) -> Result<Arc<Transfers>> {
        self.transfers.ended.store(true, Ordering::SeqCst);
        while let Some(client) = self.clients.join_next().await {
            client.context("a client")?;
        }
        self.transfers.check()?;
        Ok(self.transfers)
    }
}

/// Orders one transfer after the other.
async fn order_transfers(
    transfers: &Transfers,
    [session, another]: &[Session; 2],
    client: usize,
) -> Result<()> {
    loop {
        while transfers.paused.load(Ordering::SeqCst) {
            if transfers.ended.load(Ordering::SeqCst) {
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
        let order = transfers.add(client);
        let began = Instant::now();
        let mut status = if order.number.is_multiple_of(SENT_TWICE) {
            tokio::try_join!(order.start(session), order.start(another))?.1
        } else {
            order.start(session).await?
        };
        ensure!(status.state != State::New, "{order:?} was answered and is not there");
        if order.clearing_ms.is_some() {
            transfers.leave(order.number);
            continue;
        }
        while !status.is_final() {
            ensure!(began.elapsed() < LIMIT, "{order:?} has not ended: {status:?}");
            sleep(POLL).await;
            status = order.status(session).await?;
        }
        transfers.note_end(order.number, status);
    }
}
