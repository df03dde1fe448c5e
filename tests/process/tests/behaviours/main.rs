//! The guest `behaving` in Rust, TypeScript and Python: each feature once, on three nodes, with kills in between. What an
//! entity does must not depend on the language that it is written in.

mod c;
mod examples;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ostraca_client::{
    CallError, CallOptions, ChannelEvent, Client, Entity, MessageKind, SubscribeFrom,
};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{LIMIT, until};
use ostraca_process_tests::languages::{Guest, guests};
use serde_json::{Value, json};

/// Calls of one type.
struct Behaving<'c> {
    client: &'c Client,
    entity_type: String,
}

impl Behaving<'_> {
    fn entity(&self, id: &str) -> Entity {
        Entity::new(self.entity_type.as_str(), id)
    }

    async fn call(&self, id: &str, method: &str, body: Value) -> Result<Value, CallError> {
        let options =
            CallOptions { kind: MessageKind::Unspecified, timeout: LIMIT, ..Default::default() };
        let session = self.client.session();
        let reply = session.send(&self.entity(id), method, body.to_string(), &options).await?;
        Ok(serde_json::from_slice(&reply.body).unwrap_or_default())
    }

    async fn expect(&self, id: &str, method: &str, body: Value, expected: Value) -> Result<()> {
        let what = format!("{method} of {id}");
        let result = self.call(id, method, body).await.context(what.clone())?;
        ensure!(result == expected, "{what}: {result} instead of {expected}");
        Ok(())
    }

    async fn refused(&self, id: &str, method: &str, body: Value, expected: &str) -> Result<()> {
        let refused = self.call(id, method, body).await;
        let code = refused.as_ref().err().map(CallError::code);
        ensure!(code == Some(expected), "{method} of {id}: {refused:?} instead of {expected}");
        Ok(())
    }

    /// Waits until a query returns this.
    async fn becomes(&self, id: &str, method: &str, expected: Value) -> Result<()> {
        until(&format!("{method} of {id} is {expected}"), async || {
            let value = self.call(id, method, json!({})).await?;
            Ok((value == expected).then_some(()))
        })
        .await
    }
}

/// Kills the owner of an entity, and starts it again.
async fn kill_owner(cluster: &mut Cluster, it: &Behaving<'_>, id: &str) -> Result<()> {
    let detail = it.client.inspect(&it.entity(id), false).await?;
    let owner = cluster.owner_of(detail.shard).await?;
    cluster.kill_9(owner)?;
    cluster.start_node(owner)?;
    Ok(())
}

async fn behave(cluster: &mut Cluster, client: &Client, guest: &Guest) -> Result<()> {
    let entity_type = format!("behaving-{}", guest.language);
    let manifest = format!(
        "{}[channels]\nkeep-items = 100\n[grants]\ntell = [{entity_type:?}]\nask = [{entity_type:?}]\n",
        guest.manifest()
    );
    client.deploy(&manifest, guest.first.clone(), None).await.context("deploy")?;
    let it = Behaving { client, entity_type };
    let none = || json!({});

    it.expect("a", "add", json!({"by": 2}), json!(2)).await?;
    it.expect("a", "add", json!(3), json!(5)).await?;
    it.refused("a", "add", json!(0), "nothing-to-add").await?;
    it.expect("a", "get", none(), json!(5)).await.context("a refusal changes nothing")?;
    it.refused("a", "add", json!("x"), "invalid-arguments").await?;
    it.refused("a", "add", json!({"bye": 1}), "invalid-arguments").await?;
    it.refused("a", "nope", none(), "unknown-method").await?;
    it.refused("a", "fail", none(), "panicked").await?;
    it.expect("a", "add", json!(1), json!(6)).await.context("after a failure")?;

    // A timer, tells and a subscription that a kill cannot stop.
    it.expect("reader", "follow", json!({"id": "a"}), Value::Null).await?;
    for text in ["one", "two"] {
        it.expect("a", "append", json!({"text": text}), json!(if text == "one" { 1 } else { 2 }))
            .await?;
    }
    it.expect("a", "later", json!({"text": "ü€😀", "ms": 3_000}), Value::Null).await?;
    it.expect("a", "tell", json!({"id": "b", "times": 20}), Value::Null).await?;
    kill_owner(cluster, &it, "a").await?;
    it.becomes("a", "fired", json!(["ü€😀"])).await?;
    it.becomes("b", "get", json!(20)).await?;
    it.expect("a", "events", none(), json!(["one", "two"])).await?;
    it.expect("a", "get", none(), json!(6)).await?;

    it.expect("a", "ask", json!({"id": "b", "by": 5}), json!("25")).await?;
    it.expect("a", "ask", json!({"id": "b", "by": 0}), json!("nothing-to-add")).await?;
    it.expect("a", "ask", json!({"id": "a", "by": 1}), json!("ask-cycle")).await?;

    let mut posts = client.subscribe(&it.entity("a"), "posts", SubscribeFrom::Oldest);
    for text in ["p1", "p2", "p3"] {
        it.expect("a", "post", json!({"text": text}), Value::Null).await?;
        if text == "p2" {
            kill_owner(cluster, &it, "reader").await?;
        }
    }
    for text in ["p1", "p2", "p3"] {
        match tokio::time::timeout(LIMIT, posts.next()).await?? {
            ChannelEvent::Item(item) => {
                let item: Value = serde_json::from_slice(&item.data)?;
                ensure!(item == json!(text), "{item} instead of {text}");
            }
            other => anyhow::bail!("{other:?} instead of {text}"),
        }
    }
    it.becomes("reader", "notes", json!(["p1", "p2", "p3"])).await?;

    let mut drawn = Vec::new();
    for id in ["a", "a", "b", "c"] {
        let numbers = it.call(id, "draw", none()).await?;
        drawn.extend(numbers.as_array().context("numbers")?.clone());
    }
    let distinct: std::collections::BTreeSet<_> = drawn.iter().map(Value::to_string).collect();
    ensure!(distinct.len() == 8, "entities or turns draw the same numbers: {drawn:?}");

    it.expect("gone", "add", json!(9), json!(9)).await?;
    it.expect("gone", "end", none(), Value::Null).await?;
    it.expect("gone", "get", none(), json!(0)).await?;

    client.deploy(&manifest, guest.evolved.clone(), None).await.context("deploy the next")?;
    it.becomes("b", "get", json!(1_025)).await?;
    kill_owner(cluster, &it, "b").await?;
    it.expect("b", "add", json!(1), json!(1_026)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entity_behaves_alike_in_every_language() -> Result<()> {
    let guests = tokio::task::spawn_blocking(guests).await??;
    // Three nodes compile the same large components at once, beside another suite.
    let settings = "lease = \"2 s\"\n[compiler]\ntimeout = \"5 min\"\n".into();
    let options = Options { settings, ..Options::three("behaviours") };
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    for guest in &guests {
        let started = Instant::now();
        let behaved = behave(&mut cluster, &client, guest).await;
        behaved.with_context(|| format!("{}\n{}", guest.language, cluster.logs()))?;
        let (took, size) = (started.elapsed(), guest.first.len());
        println!("{}: {size} bytes, {took:?}", guest.language);
        ensure!(took < Duration::from_secs(600), "it takes {took:?}");
    }
    client.close().await;
    Ok(())
}
