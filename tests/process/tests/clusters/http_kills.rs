//! Calls over HTTP with idempotency keys, repeated through any gateway until they are answered, while nodes are killed
//! and drained: nothing acknowledged is lost, nothing runs twice (promises 2 to 4, R17).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::StatusCode;
use ostraca_client::Client;
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::{Options, TIMEOUT};
use ostraca_process_tests::guest_calls::until;
use ostraca_process_tests::http::{CallsEntities, HttpCaller, HttpReply, web_token};
use ostraca_process_tests::node_dir::deploy_example;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::Instant;

const CALLERS: u64 = 24;
const ENTITIES: u64 = 12;
/// Each node is killed this many times, and one is drained after each round.
const ROUNDS: usize = 2;
/// Commands that are answered between two faults.
const BETWEEN: u64 = 150;

/// A command that was answered.
#[derive(Clone, Debug)]
struct Answered {
    entity: String,
    by: u64,
    version: u64,
    sum: u64,
}

/// What all callers share.
struct Calls {
    gateways: Vec<SocketAddr>,
    token: String,
    answered: AtomicU64,
    /// How often a request was sent again after an answer that left its outcome open, or after none.
    in_doubt: AtomicU64,
    /// Requests that were answered, and then sent again.
    repeated: AtomicU64,
    end: AtomicBool,
}

impl Calls {
    /// Sends a request through one gateway after the other until it has a final outcome.
    async fn until_answered(
        &self,
        caller: &mut HttpCaller,
        rng: &mut StdRng,
        (entity, by, key): (&str, u64, &str),
    ) -> Result<HttpReply> {
        let until = Instant::now() + TIMEOUT;
        loop {
            let call = ("counter", entity, "add");
            let body = format!("{{\"by\":{by}}}");
            let why = match caller.call(call, body, Some(key)).await {
                Ok(reply) if reply.status == StatusCode::OK => return Ok(reply),
                Ok(reply) => {
                    let outcome = reply.header("ostraca-outcome");
                    let is_open = outcome == "unknown";
                    let may_repeat = is_open || outcome == "not-run";
                    ensure!(may_repeat && reply.status.is_server_error(), "{reply:?}");
                    self.in_doubt.fetch_add(u64::from(is_open), Ordering::SeqCst);
                    format!("{reply:?}")
                }
                Err(error) => {
                    self.in_doubt.fetch_add(1, Ordering::SeqCst);
                    error.to_string()
                }
            };
            if Instant::now() > until {
                bail!("{entity} += {by} with {key} is not answered: {why}");
            }
            caller.turn_to(self.gateways[rng.random_range(0..self.gateways.len())]);
            tokio::time::sleep(Duration::from_millis(rng.random_range(5..50))).await;
        }
    }

    async fn caller(self: Arc<Self>, number: u64, seed: u64) -> Result<Vec<Answered>> {
        let mut rng = StdRng::seed_from_u64(seed);
        let first = self.gateways[number as usize % self.gateways.len()];
        let mut caller = HttpCaller::new(first, &self.token)?;
        let mut all = Vec::new();
        while !self.end.load(Ordering::SeqCst) {
            let (entity, by) = (rng.random_range(0..ENTITIES).to_string(), rng.random_range(1..10));
            let key = format!("{number}-{}-{}", all.len(), rng.random::<u64>());
            let request = (entity.as_str(), by, key.as_str());
            let reply = self.until_answered(&mut caller, &mut rng, request).await?;
            if rng.random_ratio(1, 5) {
                caller.turn_to(self.gateways[rng.random_range(0..self.gateways.len())]);
                let again = self.until_answered(&mut caller, &mut rng, request).await?;
                let of = |reply: &HttpReply| {
                    (reply.body.clone(), reply.header("ostraca-entity-version").to_owned())
                };
                ensure!(of(&reply) == of(&again), "{request:?}: {reply:?}, then {again:?}");
                self.repeated.fetch_add(1, Ordering::SeqCst);
            }
            let version = reply.header("ostraca-entity-version").parse()?;
            let sum = std::str::from_utf8(&reply.body)?.parse()?;
            all.push(Answered { entity, by, version, sum });
            self.answered.fetch_add(1, Ordering::SeqCst);
        }
        Ok(all)
    }

    async fn more(&self) -> Result<()> {
        let from = self.answered.load(Ordering::SeqCst);
        let until = Instant::now() + TIMEOUT;
        while self.answered.load(Ordering::SeqCst) < from + BETWEEN {
            ensure!(Instant::now() < until, "no calls are answered");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

/// Each node observes the policy when the row reaches it.
async fn until_admitted(gateway: SocketAddr, token: &str) -> Result<()> {
    let mut caller = HttpCaller::new(gateway, token)?;
    until("the gateway has the policy", async || {
        let reply = caller.call(("counter", "other", "add"), "1".into(), None).await?;
        Ok((reply.status != StatusCode::UNAUTHORIZED).then_some(()))
    })
    .await
}

async fn faults(cluster: &mut Cluster, admin: &Client, calls: &Calls, seed: u64) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..ROUNDS {
        for node in 0..cluster.len() {
            calls.more().await?;
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..100))).await;
            cluster.kill_9(node)?;
            cluster.start_node(node)?;
            cluster.wait_settled().await?;
        }
        calls.more().await?;
        let mut drain = admin.drain("n3", false).await?;
        while !drain.next().await?.context("the drain ended early")?.done {}
        calls.more().await?;
        let mut undone = admin.drain("n3", true).await?;
        while undone.next().await?.is_some_and(|progress| !progress.done) {}
        cluster.wait_settled().await?;
    }
    calls.more().await
}

/// Every entity's commands ran once, in the order of their versions, and each saw the sum of those before it.
fn judge(all: Vec<Answered>) -> BTreeMap<String, u64> {
    let mut by_entity: BTreeMap<String, BTreeMap<u64, Answered>> = BTreeMap::new();
    for answered in all {
        let versions = by_entity.entry(answered.entity.clone()).or_default();
        let other = versions.insert(answered.version, answered.clone());
        assert!(other.is_none(), "{other:?} and {answered:?} have the same version");
    }
    let mut sums = BTreeMap::new();
    for (entity, versions) in by_entity {
        let mut sum = 0;
        for answered in versions.values() {
            sum += answered.by;
            assert_eq!(answered.sum, sum, "{answered:?} ran twice, or one before it was lost");
        }
        sums.insert(entity, sum);
    }
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r17_keys_over_http_survive_kills_and_hand_offs() {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("SEED={seed}");
    let options = Options { http: true, shards: 8, ..Options::three("http-kills") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let admin = cluster.client(0).await.expect("client");
    deploy_example(&admin, "counter").await.expect("deploy");
    let token = web_token(&admin, cluster.home(0)).await.expect("a token");
    let gateways: Vec<_> = (0..cluster.len()).map(|node| cluster.http_address(node)).collect();
    for gateway in &gateways {
        until_admitted(*gateway, &token).await.expect("the token is accepted");
    }
    let calls = Arc::new(Calls {
        gateways,
        token,
        answered: AtomicU64::new(0),
        in_doubt: AtomicU64::new(0),
        repeated: AtomicU64::new(0),
        end: AtomicBool::new(false),
    });
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        callers.spawn(Arc::clone(&calls).caller(number, seed.wrapping_add(number)));
    }
    let attacked = faults(&mut cluster, &admin, &calls, seed).await;
    calls.end.store(true, Ordering::SeqCst);
    let mut all = Vec::new();
    while let Some(answered) = callers.join_next().await {
        all.extend(answered.expect("a caller").unwrap_or_else(|error| panic!("{error:#}")));
    }
    attacked.unwrap_or_else(|error| panic!("SEED={seed}: {error:#}\n{}", cluster.logs()));
    let (commands, in_doubt) = (all.len(), calls.in_doubt.load(Ordering::SeqCst));
    let repeated = calls.repeated.load(Ordering::SeqCst);
    println!("{commands} commands, {repeated} repeated, {in_doubt} times in doubt");
    assert!(in_doubt > 10, "the faults left only {in_doubt} requests in doubt");
    let session = admin.session();
    for (entity, sum) in judge(all) {
        let counter = ostraca_client::Entity::new("counter", entity.as_str());
        let held = session.query(&counter, "get", "{}").await.expect("query");
        assert_eq!(held.body, sum.to_string(), "{entity}");
    }
    admin.close().await;
}
