//! The clients while answers are lost, gateways are gone, and nodes are killed and paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::callers::{Call, Caller, Gateways};
use crate::{SOON, Setting};

/// Commands of one caller that are answered between two faults, and how many more may be.
const BETWEEN: u64 = 10;
const AHEAD: u64 = 8;

/// What a gateway answers if it does not know what became of a message.
const DOUBT: &str = r#"{"code":"deadline-exceeded","detail":"no reply","outcome":"unknown"}"#;

/// A listener at the address of a gateway that passes requests on. In place of each of the first answers, it closes the
/// connection, or says that the outcome is unknown.
struct Lossy {
    address: String,
    losses: Arc<AtomicU64>,
    doubts: Arc<AtomicU64>,
}

impl Lossy {
    async fn start(gateway: &str) -> Result<Self> {
        let target = gateway.trim_start_matches("http://").to_owned();
        let (host, _) = target.rsplit_once(':').context("a port")?;
        // The gateway is addressed by the same host.
        let listener = TcpListener::bind((host, 0)).await?;
        let address = format!("http://{}", listener.local_addr()?);
        let [losses, doubts] = [(), ()].map(|()| Arc::new(AtomicU64::new(0)));
        let (left, unclear) = (Arc::clone(&losses), Arc::clone(&doubts));
        tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let Ok(gateway) = TcpStream::connect(&target).await else { continue };
                let (left, unclear) = (Arc::clone(&left), Arc::clone(&unclear));
                tokio::spawn(async move {
                    let (mut from_caller, mut to_caller) = caller.into_split();
                    let (mut from_gateway, mut to_gateway) = gateway.into_split();
                    let back = async {
                        let mut bytes = vec![0; 64 << 10];
                        while let Ok(count @ 1..) = from_gateway.read(&mut bytes).await {
                            // A browser's preflights pass.
                            let text = String::from_utf8_lossy(&bytes[..count]);
                            let is_result = text.contains("ostraca-outcome: result");
                            if is_result && take(&left) {
                                return;
                            }
                            if is_result && take(&unclear) {
                                // How it ends is up to the caller.
                                let _ = to_caller.write_all(doubt().as_bytes()).await;
                                return;
                            }
                            if to_caller.write_all(&bytes[..count]).await.is_err() {
                                return;
                            }
                        }
                    };
                    tokio::select! {
                        _ = tokio::io::copy(&mut from_caller, &mut to_gateway) => {}
                        () = back => {}
                    }
                });
            }
        });
        Ok(Self { address, losses, doubts })
    }

    fn lose(&self, answers: u64) {
        self.losses.store(answers, Ordering::SeqCst);
    }

    fn at(&self, gateways: &Gateways) -> Gateways {
        Gateways { http: vec![self.address.clone()], ..gateways.clone() }
    }
}

fn doubt() -> String {
    format!(
        "HTTP/1.1 504 Gateway Timeout\r\ncontent-type: application/problem+json\r\n\
         access-control-allow-origin: *\r\naccess-control-expose-headers: ostraca-outcome\r\n\
         ostraca-outcome: unknown\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{DOUBT}",
        DOUBT.len()
    )
}

/// Takes one of those that are left, if there is one.
fn take(left: &AtomicU64) -> bool {
    let one_less = |left: u64| left.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
}

pub(crate) fn add(id: &str) -> Call {
    Call::command(("counter", id), "add", json!({"by": 1}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lost_answer_is_asked_for_with_the_same_key() -> Result<()> {
    let setting = Setting::start("lost-answers").await?;
    let gateways = &setting.gateways;
    let lossy = Lossy::start(&gateways.http[1]).await?;
    // Nothing listens on this port.
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        format!("http://{}", listener.local_addr()?)
    };
    for (language, caller) in Caller::all()? {
        if matches!(caller, Caller::Rust(_)) {
            // It speaks QUIC, and its lost answers are in other suites.
            continue;
        }
        let conversation = async {
            caller.connect("lossy", &lossy.at(gateways)).await?;
            lossy.lose(3);
            let answer = caller.call("lossy", add(language).keyed()).await?;
            ensure!(matches!(&answer, Ok((value, _)) if *value == json!(1)), "keyed: {answer:?}");
            ensure!(lossy.losses.load(Ordering::SeqCst) == 0, "no answer was lost");
            lossy.lose(1);
            let answer = caller.call("lossy", add(language)).await?;
            match language.contains("Chromium") {
                // A browser repeats it by itself, so there the client sends a key without being asked.
                true => {
                    ensure!(matches!(&answer, Ok((value, _)) if *value == json!(2)), "{answer:?}")
                }
                false => {
                    let doubt = Err(("unknown".to_owned(), "connection-lost".to_owned()));
                    ensure!(answer == doubt, "without a key: {answer:?}");
                }
            }
            lossy.lose(2);
            let get = Call::query(("counter", language), "get", Value::Null);
            let answer = caller.call("lossy", get).await?;
            ensure!(matches!(&answer, Ok((value, _)) if *value == json!(2)), "query: {answer:?}");
            lossy.lose(0);

            // Whichever it begins with, it comes to the last one.
            let mut most = vec![closed.clone(); 5];
            most.push(gateways.http[0].clone());
            caller.connect("half", &Gateways { http: most, ..gateways.clone() }).await?;
            for at in 3..8 {
                // A browser does not tell whether a request was sent.
                let call = match language.contains("Chromium") {
                    true => add(language).keyed(),
                    false => add(language),
                };
                let answer = caller.call("half", call).await?;
                ensure!(matches!(&answer, Ok((value, _)) if *value == json!(at)), "{answer:?}");
            }

            // A gateway in doubt is asked again only with a key.
            let doubtful = format!("{language}, in doubt");
            lossy.doubts.store(2, Ordering::SeqCst);
            let answer = caller.call("lossy", add(&doubtful).keyed()).await?;
            ensure!(matches!(&answer, Ok((value, _)) if *value == json!(1)), "{answer:?}");
            ensure!(lossy.doubts.load(Ordering::SeqCst) == 0, "no answer was replaced");
            if !language.contains("Chromium") {
                lossy.doubts.store(1, Ordering::SeqCst);
                let answer = caller.call("lossy", add(&doubtful)).await?;
                let doubt = Err(("unknown".to_owned(), "deadline-exceeded".to_owned()));
                ensure!(answer == doubt, "without a key: {answer:?}");
            }

            let good = gateways.tokens[0].clone();
            let bad = format!("{}x", &good[..good.len() - 8]);
            let with = |tokens: &[&String]| Gateways {
                tokens: tokens.iter().map(|&token| token.clone()).collect(),
                ..gateways.clone()
            };
            caller.connect("bad", &with(&[&bad])).await?;
            let answer = caller.call("bad", add(language)).await?;
            let refused = Err(("not-run".to_owned(), "invalid-token".to_owned()));
            ensure!(answer == refused, "a bad token: {answer:?}");
            caller.connect("renewed", &with(&[&bad, &good])).await?;
            let answer = caller.call("renewed", add(language)).await?;
            ensure!(matches!(&answer, Ok((value, _)) if *value == json!(8)), "{answer:?}");
            Ok(())
        };
        conversation.await.context(language)?;
    }
    setting.admin.close().await;
    Ok(())
}

/// Adds 1 to a counter, posts the sum to a room, and again: each sum is one more than the last. Goes on as far as it may.
async fn count(
    caller: Caller,
    id: String,
    answered: Arc<AtomicU64>,
    (may, end): (Arc<AtomicU64>, Arc<AtomicBool>),
) -> Result<u64> {
    let mut sum = 0;
    while !end.load(Ordering::SeqCst) {
        if sum >= may.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(5)).await;
            continue;
        }
        sum += 1;
        let answer = caller.call("all", add(&id).keyed().within(60_000)).await?;
        ensure!(matches!(&answer, Ok((value, _)) if *value == json!(sum)), "{sum}: {answer:?}");
        let arguments = json!({"name": "ann", "text": sum.to_string()});
        let post = Call::command(("chat", &id), "post", arguments).keyed().within(60_000);
        let answer = caller.call("all", post).await?;
        ensure!(answer.is_ok(), "{sum}: {answer:?}");
        let get = Call::query(("counter", &id), "get", Value::Null).within(60_000);
        let answer = caller.call("all", get).await?;
        ensure!(matches!(&answer, Ok((value, _)) if *value == json!(sum)), "{sum}: {answer:?}");
        answered.fetch_add(1, Ordering::SeqCst);
    }
    Ok(sum)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_and_channels_survive_kills_and_pauses() -> Result<()> {
    let mut setting = Setting::start("client-kills").await?;
    survive(&mut setting, Caller::all()?, (&[1, 2, 0], &[1, 2])).await?;
    setting.admin.close().await;
    Ok(())
}

/// Kills nodes and pauses nodes, one after the other, while callers call entities and follow channels.
pub(crate) async fn survive(
    setting: &mut Setting,
    callers: Vec<(&'static str, Caller)>,
    (kills, pauses): (&[usize], &[usize]),
) -> Result<()> {
    let steps = (kills.len() + 2 * pauses.len() + 1) as u64;
    // Almost all of those that are posted.
    let followed = usize::try_from(AHEAD + steps * BETWEEN - 2 * AHEAD)?;
    let end = Arc::new(AtomicBool::new(false));
    // Each fault meets calls in progress, and none of the callers is far ahead of it.
    let may = Arc::new(AtomicU64::new(AHEAD));
    let mut counts = JoinSet::new();
    let mut all = Vec::new();
    for (language, caller) in callers {
        caller.connect("all", &setting.gateways).await?;
        let join = Call::command(("chat", language), "join", json!({"name": "ann"}));
        let joined = caller.call("all", join).await?;
        ensure!(joined.is_ok(), "{language}: {joined:?}");
        let answered = Arc::new(AtomicU64::new(0));
        let (id, limits) = (language.to_owned(), (Arc::clone(&may), Arc::clone(&end)));
        let counting = count(caller.clone(), id, Arc::clone(&answered), limits);
        counts.spawn(async move { (language, counting.await.context(language)) });
        all.push((language, caller, answered));
    }
    // Each language follows what it posts, from one node to the next.
    let mut following = JoinSet::new();
    for (language, caller, _) in &all {
        let (language, caller) = (*language, caller.clone());
        following.spawn(async move {
            let from = json!({"from": "oldest"});
            let items =
                caller.follow("all", ("chat", language), ("messages", from), followed).await?;
            let items = items.map_err(|code| anyhow::anyhow!("{language}: {code}"))?;
            // The room keeps the latest ones, so some may have gone before the first request.
            let first = items[0].0["number"].as_u64().context("a number")?;
            for (at, (item, ..)) in (first..).zip(&items) {
                ensure!(item["text"] == json!(at.to_string()), "{language}: {item}, not {at}");
            }
            anyhow::Ok(())
        });
    }
    let more = async || {
        may.fetch_add(BETWEEN, Ordering::SeqCst);
        let from: Vec<_> = all.iter().map(|(.., it)| it.load(Ordering::SeqCst)).collect();
        let until = Instant::now() + SOON;
        for ((language, _, answered), from) in all.iter().zip(from) {
            // It may have been ahead already.
            let target = (from + BETWEEN).min(may.load(Ordering::SeqCst));
            while answered.load(Ordering::SeqCst) < target {
                ensure!(Instant::now() < until, "{language}: nothing is answered");
                sleep(Duration::from_millis(10)).await;
            }
        }
        anyhow::Ok(())
    };
    let attack = async {
        for &node in kills {
            more().await?;
            setting.cluster.kill_9(node)?;
            sleep(Duration::from_secs(1)).await;
            setting.cluster.start_node(node)?;
        }
        for &node in pauses {
            more().await?;
            setting.cluster.pause(node)?;
            more().await?;
            setting.cluster.resume(node)?;
        }
        more().await
    };
    let attacked = attack.await;
    end.store(true, Ordering::SeqCst);
    while let Some(counted) = counts.join_next().await {
        let (language, sum) = counted?;
        eprintln!("{language}: {} commands", sum?);
    }
    attacked.with_context(|| setting.cluster.logs())?;
    while let Some(followed) = following.join_next().await {
        followed??;
    }
    Ok(())
}
