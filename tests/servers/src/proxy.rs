//! A proxy in front of a server that can stop forwarding in the middle of what a client sends, as if the client had been
//! stopped there, can hold the server's answers back, and can close all connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// No limit.
const UNLIMITED: i64 = i64::MAX;

/// The proxy's switches.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    /// The server's port.
    target: Arc<AtomicU16>,
    /// How many bytes of clients are still forwarded.
    left: Arc<AtomicI64>,
    /// How many bytes of clients have been forwarded.
    passed: Arc<AtomicU64>,
    /// Whether the server's answers are held back.
    holds: Arc<AtomicBool>,
    cuts: watch::Sender<u64>,
}

impl Proxy {
    /// Starts a proxy in front of this port.
    pub async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (left, passed) = (Arc::new(AtomicI64::new(UNLIMITED)), Arc::new(AtomicU64::new(0)));
        let cuts = watch::Sender::new(0);
        let target = Arc::new(AtomicU16::new(port));
        let proxy = Self { address, target, left, passed, holds: Arc::default(), cuts };
        let (left, passed) = (proxy.left.clone(), proxy.passed.clone());
        let (holds, target) = (proxy.holds.clone(), proxy.target.clone());
        let cuts = proxy.cuts.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) =
                    TcpStream::connect(("127.0.0.1", target.load(Ordering::SeqCst))).await
                else {
                    continue;
                };
                let (left, passed, holds) = (left.clone(), passed.clone(), holds.clone());
                let mut cuts = cuts.clone();
                cuts.mark_unchanged();
                // Nothing passes after a cut, not even what waited when everything was let through again.
                let (now, then) = (cuts.clone(), *cuts.borrow());
                let is_cut = move || *now.borrow() != then;
                tokio::spawn(async move {
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    let forward = async {
                        let mut bytes = vec![0; 64 << 10];
                        while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
                            let mut sent = 0;
                            while sent < count {
                                if is_cut() {
                                    return;
                                }
                                let may = left.load(Ordering::SeqCst).max(0);
                                let now = usize::try_from(may).unwrap_or(count).min(count - sent);
                                if now == 0 {
                                    tokio::time::sleep(Duration::from_millis(2)).await;
                                    continue;
                                }
                                if left.load(Ordering::SeqCst) != UNLIMITED {
                                    left.fetch_sub(now as i64, Ordering::SeqCst);
                                }
                                if to_server.write_all(&bytes[sent..sent + now]).await.is_err() {
                                    return;
                                }
                                sent += now;
                                passed.fetch_add(now as u64, Ordering::SeqCst);
                            }
                        }
                    };
                    let back = async {
                        let mut bytes = vec![0; 64 << 10];
                        while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                            while holds.load(Ordering::SeqCst) {
                                tokio::time::sleep(Duration::from_millis(2)).await;
                            }
                            if is_cut() || to_client.write_all(&bytes[..count]).await.is_err() {
                                return;
                            }
                        }
                    };
                    tokio::select! {
                        () = forward => {}
                        () = back => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        proxy
    }

    /// The port on which it listens, at 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The number of bytes that clients have sent so far.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }

    /// Forwards this many more bytes of clients, and then none.
    pub fn stop_after(&self, bytes: u64) {
        self.left.store(bytes.try_into().expect("a number"), Ordering::SeqCst);
    }

    /// Forwards everything again.
    pub fn go_on(&self) {
        self.left.store(UNLIMITED, Ordering::SeqCst);
    }

    /// Holds the server's answers back, or lets them pass again.
    pub fn hold_answers(&self, hold: bool) {
        self.holds.store(hold, Ordering::SeqCst);
    }

    /// Forwards new connections to this port, and closes those before.
    pub fn redirect(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
        self.cut();
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}
