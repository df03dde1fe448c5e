//! Bare parts for comparison with the platform: a QUIC echo in a separate process, and fdatasync.
//!
//! The echo uses the platform's endpoint, TLS and limits, but not its protocol.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use ostraca_ca::Ca;
use ostraca_core::ids::ClusterId;
use ostraca_wire::identity::{Identity, TrustRoot};
use ostraca_wire::{ALPN_CLIENT, Limits, endpoint, tls};
use tokio::task::JoinSet;

use crate::load::{LoadResult, histogram};

/// Creates the certificates for an echo, in a directory that both sides read.
///
/// # Errors
/// If they cannot be created or written.
pub fn prepare(dir: &Path) -> Result<()> {
    let ca = Ca::create(ClusterId(rand::random()))?;
    ca.save(dir)?;
    ca.issue_node("echo", &[])?.save(dir, "node")?;
    Ok(ca.issue_client("echo")?.save(dir, "client")?)
}

/// An endpoint with the certificates of a directory.
pub(crate) fn listen(dir: &Path) -> Result<quinn::Endpoint> {
    let identity = Identity::load(&dir.join("node.pem"), &dir.join("node.key"))?;
    let limits = Limits::default();
    let tls = tls::server(&identity, &trust(dir)?, &[ALPN_CLIENT])?;
    let config = endpoint::server_config(tls, &limits)?;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Ok(endpoint::bind(any, "listen", &limits, Some(config))?)
}

/// Echoes every stream until the process is killed; prints `ready: … at ADDRESS` first.
///
/// # Errors
/// If it cannot listen.
#[allow(clippy::print_stdout, reason = "it prints its address")]
pub async fn serve(dir: &Path) -> Result<()> {
    let endpoint = listen(dir)?;
    println!("ready: echo at {}", endpoint.local_addr()?);
    let mut tasks = JoinSet::new();
    while let Some(incoming) = endpoint.accept().await {
        tasks.spawn(async move {
            let Ok(connection) = incoming.await else { return };
            let mut streams = JoinSet::new();
            while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                streams.spawn(async move {
                    while let Ok(Some(chunk)) = recv.read_chunk(65_536, true).await {
                        if send.write_chunk(chunk.bytes).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
    }
    Ok(())
}

fn trust(dir: &Path) -> Result<TrustRoot> {
    let authority = std::fs::read_to_string(dir.join("ca.pem")).context("read ca.pem")?;
    Ok(TrustRoot::from_pem(&authority)?)
}

/// Sends messages of `size` bytes on `streams` long-lived streams, with one in flight on each. Each message begins with
/// a number below `entities`. A stream cycles through its own numbers, which no other stream uses if there are enough
/// numbers.
///
/// # Errors
/// If the echo's connection closes.
pub async fn measure(
    dir: &Path,
    address: SocketAddr,
    streams: usize,
    entities: u64,
    size: usize,
    time: Duration,
) -> Result<LoadResult> {
    let identity = Identity::load(&dir.join("client.pem"), &dir.join("client.key"))?;
    let limits = Limits::default();
    let config =
        endpoint::client_config(tls::client(Some(&identity), &trust(dir)?, ALPN_CLIENT)?, &limits)?;
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let endpoint = endpoint::bind(any, "client", &limits, None)?;
    let connection = endpoint.connect_with(config, address, tls::SERVER_NAME)?.await?;
    let began = Instant::now();
    let mut senders: JoinSet<Result<Histogram<u64>>> = JoinSet::new();
    let part = (entities / streams as u64).max(1);
    for stream in 0..streams as u64 {
        let (mut send, mut recv) = connection.open_bi().await?;
        senders.spawn(async move {
            let (mut message, mut answer) = (vec![7; size], vec![0; size]);
            let mut waits = histogram()?;
            while began.elapsed() < time {
                let entity = (stream * part + waits.len() % part) % entities;
                message[..8].copy_from_slice(&entity.to_le_bytes());
                let sent = Instant::now();
                send.write_all(&message).await?;
                recv.read_exact(&mut answer).await?;
                waits.saturating_record(u64::try_from(sent.elapsed().as_micros())?);
            }
            Ok(waits)
        });
    }
    let mut waits = histogram()?;
    while let Some(sender) = senders.join_next().await {
        waits.add(sender??)?;
    }
    let took = began.elapsed();
    connection.close(0_u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(LoadResult { done: waits.len(), took, waits })
}

/// Repeatedly appends 100 bytes to a separate file in `dir` and calls `fdatasync`.
///
/// # Errors
/// The I/O error.
pub fn measure_sync(dir: &Path, time: Duration) -> Result<LoadResult> {
    let mut file = tempfile::tempfile_in(dir)?;
    let mut waits = histogram()?;
    let began = Instant::now();
    while began.elapsed() < time {
        let wrote = Instant::now();
        file.write_all(&[7; 100])?;
        file.sync_data()?;
        waits.saturating_record(u64::try_from(wrote.elapsed().as_micros())?);
    }
    Ok(LoadResult { done: waits.len(), took: began.elapsed(), waits })
}
