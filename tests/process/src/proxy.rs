//! A faulty network: a UDP proxy in front of each node, with a rule for every pair of sender and receiver.
//!
//! A node *advertises* its proxy's address, so others reach it through the proxy; and it sends from the address
//! that it listens on, so a proxy recognizes the sending node by a packet's source. Any other source is a client.
//!
//! Confusing at first: a packet from X to Y passes through Y's proxy if X opened the connection, and through X's
//! own proxy if Y opened it. All proxies share one table of rules, so a rule for (X, Y) applies on both paths, and a
//! one-way cut affects one direction of every connection. A proxy sends to its node from a separate port for each
//! source. When a port is replaced, its source's old connections are dead, as behind a NAT.

mod rules;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinSet};

use self::rules::Table;
pub use self::rules::{Counts, Endpoint, Rule};

/// Size of a receive buffer, larger than any datagram.
const DATAGRAM: usize = 65_536;
/// Receive buffer of a proxy's socket in bytes; the kernel may allow less.
const BUFFER: usize = 4 << 20;
/// Maximum number of delayed packets; further ones are dropped and counted as lost.
const MAX_DELAYED: usize = 20_000;

/// The proxies of a cluster. They forward packets until this value is dropped.
#[derive(Debug)]
pub struct Network {
    fronts: Vec<SocketAddr>,
    shared: Arc<Shared>,
    /// Runs on a separate thread, so that a test's load does not delay packets.
    runtime: Option<Runtime>,
}

/// By node and source: the socket that sends to the node, and the task that returns the node's packets to the source.
type Flows = HashMap<(usize, SocketAddr), (Arc<UdpSocket>, AbortHandle)>;

#[derive(Debug)]
struct Shared {
    nodes: Vec<SocketAddr>,
    table: Mutex<Table>,
    delayed: AtomicUsize,
    flows: Mutex<Flows>,
}

impl Network {
    /// Starts a proxy in front of each node. A node is given as its own address and the address at which others reach
    /// it (port 0: the system chooses). `seed` determines which packets are lost, delayed and duplicated.
    ///
    /// # Errors
    /// If the system provides no socket or thread.
    pub fn start(nodes: &[(SocketAddr, SocketAddr)], seed: u64) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build()
            .context("start the proxies' thread")?;
        let shared = Arc::new(Shared {
            nodes: nodes.iter().map(|(node, _)| *node).collect(),
            table: Mutex::new(Table::new(seed)),
            delayed: AtomicUsize::new(0),
            flows: Mutex::default(),
        });
        let mut fronts = Vec::new();
        let _within = runtime.enter();
        for (place, (_, front)) in nodes.iter().enumerate() {
            let front = Arc::new(bind(*front)?);
            fronts.push(front.local_addr()?);
            // The task ends with the runtime.
            drop(runtime.spawn(serve(Arc::clone(&shared), place, front)));
        }
        Ok(Self { fronts, shared, runtime: Some(runtime) })
    }

    /// Starts one proxy in front of one node, at an address that the system chooses.
    ///
    /// # Errors
    /// Those of [`Network::start`].
    pub fn before(node: SocketAddr) -> Result<Self> {
        Self::start(&[(node, SocketAddr::new(node.ip(), 0))], 0)
    }

    /// The address at which others reach a node.
    #[must_use]
    pub fn front(&self, node: usize) -> SocketAddr {
        self.fronts[node]
    }

    /// Sets the rule for packets from one endpoint to another.
    pub fn set(&self, from: Endpoint, to: Endpoint, rule: Rule) {
        self.shared.table().set(from, to, rule);
    }

    /// Sets the rule in both directions.
    pub fn both(&self, one: Endpoint, other: Endpoint, rule: Rule) {
        self.set(one, other, rule);
        self.set(other, one, rule);
    }

    /// Sets the rule between every pair of nodes, in both directions; clients are not affected.
    pub fn between_nodes(&self, rule: Rule) {
        for one in 0..self.fronts.len() {
            for other in 0..one {
                self.both(Endpoint::Node(one), Endpoint::Node(other), rule);
            }
        }
    }

    /// Sets the rule between one node and all others, including clients.
    pub fn around(&self, node: usize, rule: Rule) {
        let others = (0..self.fronts.len()).filter(|other| *other != node).map(Endpoint::Node);
        for other in others.chain([Endpoint::Clients]) {
            self.both(Endpoint::Node(node), other, rule);
        }
    }

    /// Lets every packet pass again. Delayed packets still arrive.
    pub fn heal(&self) {
        self.shared.table().heal();
    }

    /// Replaces the ports from which a node's proxy sends, so that the node recognizes none of its sources.
    pub fn forget(&self, node: usize) {
        self.shared.flows().retain(|(of, _), (_, task)| {
            if *of == node {
                task.abort();
            }
            *of != node
        });
    }

    /// Counts of packets from one endpoint to another so far.
    #[must_use]
    pub fn counts(&self, from: Endpoint, to: Endpoint) -> Counts {
        self.shared.table().counts(from, to)
    }

    /// Counts of all packets so far.
    #[must_use]
    pub fn total(&self) -> Counts {
        self.shared.table().total()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Does not wait: this may run in an asynchronous test.
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flows(&self) -> MutexGuard<'_, Flows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn who(&self, source: SocketAddr) -> Endpoint {
        self.nodes.iter().position(|node| *node == source).map_or(Endpoint::Clients, Endpoint::Node)
    }

    /// Forwards a packet according to the rule.
    async fn pass(
        self: &Arc<Self>,
        (from, to): (Endpoint, Endpoint),
        packet: &[u8],
        out: &Out,
        late: &mut JoinSet<()>,
    ) {
        while late.try_join_next().is_some() {}
        let delayed = self.delayed.load(Ordering::Relaxed);
        let copies = self.table().judge(from, to, delayed < MAX_DELAYED);
        for delay in copies.into_iter().flatten() {
            if delay.is_zero() {
                out.send(packet).await;
                continue;
            }
            let (shared, packet, out) = (Arc::clone(self), packet.to_vec(), out.clone());
            self.delayed.fetch_add(1, Ordering::Relaxed);
            late.spawn(async move {
                tokio::time::sleep(delay).await;
                out.send(&packet).await;
                shared.delayed.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

/// Where a packet is forwarded to.
#[derive(Clone)]
enum Out {
    /// To the node that this socket is connected to.
    Node(Arc<UdpSocket>),
    /// Back to the source that the node answers.
    Source(Arc<UdpSocket>, SocketAddr),
}

impl Out {
    async fn send(&self, packet: &[u8]) {
        // Datagrams may be lost.
        let _ = match self {
            Self::Node(socket) => socket.send(packet).await,
            Self::Source(socket, source) => socket.send_to(packet, source).await,
        };
    }
}

fn bind(address: SocketAddr) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    // Smaller buffers make the proxy slower, not wrong.
    let _ = socket.set_recv_buffer_size(BUFFER);
    let _ = socket.set_send_buffer_size(BUFFER);
    socket.set_nonblocking(true)?;
    socket.bind(&address.into()).with_context(|| format!("bind {address}"))?;
    Ok(UdpSocket::from_std(StdSocket::from(socket))?)
}

/// Binds a separate port at the proxy's address, for packets to its node.
async fn towards(node: SocketAddr, from: IpAddr) -> Result<UdpSocket> {
    let socket = bind(SocketAddr::new(from, 0))?;
    socket.connect(node).await?;
    Ok(socket)
}

async fn serve(shared: Arc<Shared>, node: usize, front: Arc<UdpSocket>) {
    let Ok(own) = front.local_addr() else { return };
    let address = shared.nodes[node];
    let mut datagram = vec![0; DATAGRAM];
    // The reply tasks and the delayed packets end with this task.
    let (mut backs, mut late) = (JoinSet::new(), JoinSet::new());
    loop {
        // An error concerns only one lost datagram (an ICMP response to an earlier one): continue.
        let Ok((length, source)) = front.recv_from(&mut datagram).await else { continue };
        let known = shared.flows().get(&(node, source)).map(|(socket, _)| Arc::clone(socket));
        let socket = match known {
            Some(socket) => socket,
            None => {
                let Ok(socket) = towards(address, own.ip()).await.map(Arc::new) else { continue };
                let (shared_, front, back) =
                    (Arc::clone(&shared), Arc::clone(&front), Arc::clone(&socket));
                let task = backs.spawn(answer(shared_, node, back, Out::Source(front, source)));
                shared.flows().insert((node, source), (Arc::clone(&socket), task));
                socket
            }
        };
        let ways = (shared.who(source), Endpoint::Node(node));
        shared.pass(ways, &datagram[..length], &Out::Node(socket), &mut late).await;
    }
}

async fn answer(shared: Arc<Shared>, node: usize, back: Arc<UdpSocket>, out: Out) {
    let Out::Source(_, source) = &out else { return };
    let ways = (Endpoint::Node(node), shared.who(*source));
    let mut datagram = vec![0; DATAGRAM];
    let mut late = JoinSet::new();
    loop {
        match back.recv(&mut datagram).await {
            Ok(length) => shared.pass(ways, &datagram[..length], &out, &mut late).await,
            // The node is down, and the system responds with ICMP: avoid a busy loop.
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}
