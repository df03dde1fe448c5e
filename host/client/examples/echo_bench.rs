//! Measures how fast messages pass through the client and a node's network side, with a trivial handler.
//!
//! `cargo run --release -p ostraca-client --example echo_bench [SESSIONS] [IN_FLIGHT] [SECONDS]`
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ostraca_ca::Ca;
use ostraca_client::{Client, Entity, Problem, Profile};
use ostraca_codes::codes;
use ostraca_core::ids::{ClusterId, Incarnation};
use ostraca_wire::Limits;
use ostraca_wire::hello::NodeDescriptor;
use ostraca_wire::problem;
use ostraca_wire::proto::{Outcome, Reply};
use ostraca_wire::server::{
    AdminOperation, AdminOutput, ClientInfo, IncomingMessage, Server, Service, SessionInfo,
};

struct Echo;

impl Service for Echo {
    async fn handle_messages(&self, _: &Arc<SessionInfo>, batch: &mut Vec<IncomingMessage>) {
        for request in batch.drain(..) {
            let body = request.envelope.body;
            let outcome = Outcome::Result.into();
            request.ticket.reply(Reply { outcome, entity_version: 1, body, ..Reply::default() });
        }
    }

    fn handle_admin(
        &self,
        _: &Arc<ClientInfo>,
        _: AdminOperation,
    ) -> impl Future<Output = Result<AdminOutput, Problem>> + Send {
        std::future::ready(Err(problem(codes::UNKNOWN_REQUEST, "this node only echoes")))
    }
}

fn argument(place: usize, default: u64) -> u64 {
    std::env::args().nth(place).and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (sessions, in_flight, seconds) = (argument(1, 8), argument(2, 64), argument(3, 3));
    let ca = Ca::create(ClusterId(rand::random()))?;
    let node = ca.issue_node("bench", &[])?;
    let descriptor = NodeDescriptor {
        cluster: ca.cluster(),
        store_id: 0,
        node: "bench".into(),
        incarnation: Incarnation::default(),
    };
    let server = Arc::new(Server::bind(
        "127.0.0.1:0".parse()?,
        "listen",
        &node,
        &ca.trust()?,
        Limits::default(),
        descriptor,
        Arc::new(Echo),
    )?);
    let address = server.local_addr()?;
    let tasks = tokio_util::task::TaskTracker::new();
    let running = Arc::clone(&server);
    tasks.spawn(async move { running.run().await });

    let profile =
        Profile::new(vec![address.to_string()], ca.certificate_pem(), &ca.issue_client("bench")?);
    let client = Client::connect(profile).await?;
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut senders = Vec::new();
    for number in 0..sessions {
        let session = client.session();
        senders.push(tasks.spawn(async move {
            let entity = Entity::new("counter", format!("{number}"));
            let mut calls = std::collections::VecDeque::new();
            let (mut done, mut waits) = (0_u64, Vec::new());
            while Instant::now() < until || !calls.is_empty() {
                while calls.len() < in_flight as usize && Instant::now() < until {
                    calls.push_back((Instant::now(), session.command(&entity, "add", "[1]")));
                }
                if let Some((began, call)) = calls.pop_front() {
                    call.await?;
                    waits.push(began.elapsed());
                    done += 1;
                }
            }
            Ok::<_, ostraca_client::CallError>((done, waits))
        }));
    }
    let (mut done, mut waits) = (0, Vec::new());
    for sender in senders {
        let (count, more) = sender.await??;
        done += count;
        waits.extend(more);
    }
    waits.sort_unstable();
    let at = |part: f64| waits.get((waits.len() as f64 * part) as usize).copied();
    println!(
        "{sessions} sessions with {in_flight} in flight: {} replies/s, p50 {:?}, p99 {:?}",
        done / seconds,
        at(0.5).unwrap_or_default(),
        at(0.99).unwrap_or_default()
    );
    client.close().await;
    server.shut_down(Duration::from_secs(1)).await;
    tasks.close();
    tasks.wait().await;
    Ok(())
}
