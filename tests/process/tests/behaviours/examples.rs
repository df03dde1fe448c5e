//! The examples in other languages, on a node that is killed.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use ostraca_client::{CallError, ChannelEvent, Client, Entity, SubscribeFrom};
use ostraca_process_tests::guest_calls::{LIMIT, until};
use ostraca_process_tests::languages::{built, node_tools};
use ostraca_process_tests::{NodeDir, NodeProcess, artifacts};
use serde_json::{Value, json};

/// The language, the file in `examples/languages`, and where it goes.
const COUNTERS: [[&str; 3]; 3] = [
    ["js", "counter.js", "src/entity.js"],
    ["python", "counter.py", "entity.py"],
    ["c", "counter.c", "src/entity.c"],
];
const QUEUES: [[&str; 3]; 2] =
    [["ts", "queue.ts", "src/entity.ts"], ["python", "queue.py", "entity.py"]];

fn example([language, file, source]: [&str; 3]) -> Result<Bytes> {
    let scratch = artifacts::scratch(&format!("examples/{language}"))?;
    let entity = artifacts::root().join("examples/languages").join(file);
    built(&scratch, language, source, &entity).context(file.to_owned())
}

async fn deploy(client: &Client, name: &str, component: Bytes) -> Result<()> {
    let manifest = format!(
        "type = {name:?}\ncomponent = \"x.wasm\"\n[limits]\nmemory = \"64 MiB\"\n\
         activation-time = \"20 s\"\nturn-time = \"5 s\"\n[channels]\nkeep-items = 100\n"
    );
    client.deploy(&manifest, component, None).await.context(name.to_owned())?;
    Ok(())
}

struct Called<'c>(&'c Client, Entity);

impl Called<'_> {
    async fn command(&self, method: &str, body: Value) -> Result<Value> {
        let reply = self.0.session().command(&self.1, method, body.to_string()).await;
        let body = reply.with_context(|| format!("{method} {body}"))?.body;
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn refused(&self, method: &str, body: Value) -> String {
        let refused = self.0.session().command(&self.1, method, body.to_string()).await;
        refused.as_ref().err().map_or_else(String::new, |error: &CallError| error.code().to_owned())
    }

    async fn query(&self, method: &str) -> Result<Value> {
        Ok(serde_json::from_slice(&self.0.session().query(&self.1, method, "").await?.body)?)
    }
}

/// Leases that end, and jobs that are given up; the node is killed while a lease lasts.
async fn queue(name: &str, home: &NodeDir, node: NodeProcess) -> Result<NodeProcess> {
    let client = Client::connect(home.profile(node.address)?).await?;
    let mails = Called(&client, Entity::new(name, "mails"));
    let none = mails.command("take", json!({"worker": "w1", "ms": 1})).await?;
    ensure!(none == Value::Null, "{none}");
    for (id, to) in [(1, "ann"), (2, "bob")] {
        ensure!(mails.command("add", json!({"work": {"to": to}})).await? == id);
    }
    let take = |ms: u64| json!({"worker": "w1", "ms": ms});
    let first = mails.command("take", take(3_600_000)).await?;
    ensure!(first == json!({"id": 1, "work": {"to": "ann"}, "attempt": 1}), "{first}");
    ensure!(mails.refused("finish", json!({"id": 1, "worker": "w2"})).await == "not-leased");
    ensure!(mails.command("take", take(1_500)).await?["id"] == 2);
    client.close().await;
    node.kill_9()?;

    let node = NodeProcess::start(home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    let mails = Called(&client, Entity::new(name, "mails"));
    until("the lease has ended", async || Ok((mails.query("waiting").await? == 1).then_some(())))
        .await?;
    mails.command("finish", json!({"id": 1, "worker": "w1"})).await?;
    for attempt in [2, 3] {
        let again = mails.command("take", take(1)).await?;
        ensure!(again == json!({"id": 2, "work": {"to": "bob"}, "attempt": attempt}), "{again}");
        let changed = async || {
            let (waiting, abandoned) =
                (mails.query("waiting").await?, mails.query("abandoned").await?);
            Ok((waiting == 1 || abandoned != json!([])).then_some(()))
        };
        until("the lease has ended", changed).await?;
    }
    let abandoned = mails.query("abandoned").await?;
    ensure!(abandoned == json!([{"id": 2, "work": {"to": "bob"}, "attempt": 3}]), "{abandoned}");
    let mut changes = client.subscribe(&mails.1, "changes", SubscribeFrom::Oldest);
    for (id, what) in [
        (1, "added"),
        (2, "added"),
        (1, "taken"),
        (2, "taken"),
        (2, "expired"),
        (1, "finished"),
        (2, "taken"),
        (2, "expired"),
        (2, "taken"),
        (2, "set aside"),
    ] {
        match tokio::time::timeout(LIMIT, changes.next()).await?? {
            ChannelEvent::Item(item) => {
                let item: Value = serde_json::from_slice(&item.data)?;
                ensure!(item == json!({"id": id, "what": what}), "{item}, not {id} {what}");
            }
            other => anyhow::bail!("{other:?}"),
        }
    }
    client.close().await;
    Ok(node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_in_other_languages_work() -> Result<()> {
    let make = || -> Result<_> {
        node_tools();
        let counters = COUNTERS.map(example).into_iter().collect::<Result<Vec<_>>>()?;
        Ok((counters, QUEUES.map(example).into_iter().collect::<Result<Vec<_>>>()?))
    };
    let (counters, queues) = tokio::task::spawn_blocking(make).await??;
    let home = NodeDir::init("examples")?;
    let mut node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    for ([language, ..], component) in COUNTERS.iter().zip(counters) {
        let name = format!("counter-{language}");
        deploy(&client, &name, component).await?;
        let alice = Called(&client, Entity::new(name.as_str(), "alice"));
        ensure!(alice.query("get").await? == 0, "{language}");
        ensure!(alice.command("add", json!(5)).await? == 5, "{language}");
        ensure!(alice.command("add", json!(7)).await? == 12, "{language}");
        ensure!(alice.refused("add", json!("x")).await == "invalid-arguments", "{language}");
        ensure!(alice.query("get").await? == 12, "{language}");
    }
    for ([language, ..], component) in QUEUES.iter().zip(queues) {
        deploy(&client, &format!("queue-{language}"), component).await?;
    }
    client.close().await;
    for [language, ..] in QUEUES {
        let name = format!("queue-{language}");
        node = queue(&name, &home, node).await.with_context(|| name.clone())?;
    }
    node.stop()?;
    Ok(())
}
