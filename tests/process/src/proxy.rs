//! A UDP proxy between clients and a node: it can go dark, and forget whom it served.
//!
//! A client behind a forgotten port is a stranger to the node, so its old connection is dead, and
//! while the proxy is dark nothing tells either side. That is how real networks break connections.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::net::UdpSocket;
use tokio::task::{AbortHandle, JoinSet};

/// Larger than any datagram.
const DATAGRAM: usize = 65_536;

/// Passes datagrams on until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    /// Where clients find it.
    pub address: SocketAddr,
    state: Arc<State>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct State {
    node: SocketAddr,
    dark: AtomicBool,
    swallowed: AtomicU64,
    /// A socket of its own for each client, with the task that brings the answers back.
    clients: Mutex<HashMap<SocketAddr, (Arc<UdpSocket>, AbortHandle)>>,
}

impl Proxy {
    /// A proxy before a node.
    ///
    /// # Errors
    /// If the system gives no socket.
    pub async fn start(node: SocketAddr) -> Result<Self> {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
        let address = front.local_addr()?;
        let state = Arc::new(State {
            node,
            dark: AtomicBool::new(false),
            swallowed: AtomicU64::new(0),
            clients: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(Arc::clone(&state), front));
        Ok(Self { address, state, tasks })
    }

    /// From now on nothing passes, either way.
    pub fn go_dark(&self) {
        self.state.dark.store(true, Ordering::SeqCst);
    }

    /// Passes datagrams again; with new ports towards the node if `forget`.
    pub fn light_up(&self, forget: bool) {
        if forget {
            for (_, (_, back)) in self.state.clients().drain() {
                back.abort();
            }
        }
        self.state.dark.store(false, Ordering::SeqCst);
    }

    /// How many datagrams were dropped in the dark.
    #[must_use]
    pub fn swallowed(&self) -> u64 {
        self.state.swallowed.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.light_up(true);
        self.tasks.abort_all();
    }
}

impl State {
    fn clients(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, (Arc<UdpSocket>, AbortHandle)>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn swallows(&self) -> bool {
        let dark = self.dark.load(Ordering::SeqCst);
        if dark {
            self.swallowed.fetch_add(1, Ordering::Relaxed);
        }
        dark
    }
}

async fn serve(state: Arc<State>, front: Arc<UdpSocket>) {
    let mut datagram = vec![0; DATAGRAM];
    // The answering tasks end with this one.
    let mut backs = JoinSet::new();
    loop {
        // An error is one datagram that did not arrive (an ICMP answer to an earlier one): go on.
        let Ok((length, client)) = front.recv_from(&mut datagram).await else { continue };
        if state.swallows() {
            continue;
        }
        let known = state.clients().get(&client).map(|(socket, _)| Arc::clone(socket));
        let socket = match known {
            Some(socket) => socket,
            None => {
                let Ok(socket) = UdpSocket::bind("127.0.0.1:0").await else { continue };
                if socket.connect(state.node).await.is_err() {
                    continue;
                }
                let socket = Arc::new(socket);
                let back =
                    answer(Arc::clone(&state), Arc::clone(&front), Arc::clone(&socket), client);
                let back = backs.spawn(back);
                state.clients().insert(client, (Arc::clone(&socket), back));
                socket
            }
        };
        // A datagram that is lost is what datagrams are.
        let _ = socket.send(&datagram[..length]).await;
    }
}

async fn answer(
    state: Arc<State>,
    front: Arc<UdpSocket>,
    socket: Arc<UdpSocket>,
    client: SocketAddr,
) {
    let mut datagram = vec![0; DATAGRAM];
    loop {
        match socket.recv(&mut datagram).await {
            Ok(length) if !state.swallows() => {
                let _ = front.send_to(&datagram[..length], client).await;
            }
            Ok(_) => {}
            // The node is down: its port answers by ICMP. Do not spin on it.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
        }
    }
}
