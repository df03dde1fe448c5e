//! What every client must make of the same answers, in the same words.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::callers::{Answer, Call, Caller};

fn value(answer: Answer) -> Result<Value> {
    match answer {
        Ok((value, _)) => Ok(value),
        Err(error) => anyhow::bail!("{error:?}"),
    }
}

/// The caller, under the name of its client, and a prefix of the ids that only it uses.
pub(crate) struct Conversation<'c> {
    pub(crate) caller: &'c Caller,
    pub(crate) client: &'c str,
    pub(crate) prefix: String,
}

impl Conversation<'_> {
    fn id(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    async fn call(&self, call: Call) -> Result<Answer> {
        self.caller.call(self.client, call).await
    }

    async fn expect(&self, call: Call, expected: Value) -> Result<u64> {
        let shown = format!("{call:?}");
        match self.call(call).await? {
            Ok((value, version)) => {
                ensure!(value == expected, "{shown}: {value}");
                Ok(version)
            }
            Err(error) => anyhow::bail!("{shown}: {error:?}"),
        }
    }

    async fn refused(&self, call: Call, outcome: &str, code: &str) -> Result<()> {
        let shown = format!("{call:?}");
        let answer = self.call(call).await?;
        let expected = Err((outcome.to_owned(), code.to_owned()));
        ensure!(answer == expected, "{shown}: {answer:?} instead of {expected:?}");
        Ok(())
    }

    /// Every conversation.
    pub(crate) async fn all(&self) -> Result<()> {
        self.results().await?;
        self.refusals().await?;
        self.ids().await?;
        self.many().await?;
        self.deadlines().await?;
        self.channels().await
    }

    /// Arguments by name and alone, results with and without a value, versions.
    pub(crate) async fn results(&self) -> Result<()> {
        let id = self.id("results");
        let counter = ("counter", id.as_str());
        let first = self.expect(Call::command(counter, "add", json!(5)), json!(5)).await?;
        let second = Call::command(counter, "add", json!({"by": 2})).keyed();
        ensure!(self.expect(second, json!(7)).await? > first, "the version has not changed");
        let version = self.expect(Call::query(counter, "get", Value::Null), json!(7)).await?;
        let none = Call::command(counter, "limit", json!({"at": null}));
        ensure!(self.expect(none, Value::Null).await? > version, "a command is a turn");
        self.expect(Call::command(counter, "reset", json!({})), json!(7)).await?;
        // A number that JavaScript cannot represent is refused nowhere, and rounded only there.
        self.expect(Call::command(counter, "add", json!(1_u64 << 53)), json!(1_u64 << 53)).await?;
        Ok(())
    }

    /// Refusals of the entity, of the gateway, and of a method of the other kind.
    pub(crate) async fn refusals(&self) -> Result<()> {
        let id = self.id("refusals");
        let (counter, account) = (("counter", id.as_str()), ("account", id.as_str()));
        let overdrawn = Call::command(account, "withdraw", json!({"cents": 1}));
        self.refused(overdrawn, "application-error", "insufficient-funds").await?;
        let keyed = Call::command(account, "withdraw", json!({"cents": 1})).keyed();
        self.refused(keyed, "application-error", "insufficient-funds").await?;
        let wrong = Call::command(counter, "add", json!({"bye": 1}));
        self.refused(wrong, "application-error", "invalid-arguments").await?;
        let unknown = Call::command(("countre", &id), "add", json!(1));
        self.refused(unknown, "not-run", "unknown-type").await?;
        let unknown = Call::command(counter, "ad", json!(1));
        self.refused(unknown, "not-run", "unknown-method").await?;
        let as_query = Call::query(counter, "add", json!(1));
        self.refused(as_query, "not-run", "wrong-kind").await?;
        let as_command = Call::command(counter, "get", Value::Null);
        self.refused(as_command, "not-run", "wrong-kind").await?;
        let large = Call::command(counter, "add", json!({"by": "x".repeat(3 << 20)}));
        self.refused(large, "not-run", "message-too-large").await?;
        self.expect(Call::query(counter, "get", Value::Null), json!(0)).await?;
        Ok(())
    }

    /// Ids with characters that mean something in URLs.
    pub(crate) async fn ids(&self) -> Result<()> {
        let names = ["a/b", "a%2Fb", "ü €", "?x=1#y", "a b+c", "..x", "\\", "%", "'\"<>&"];
        for (at, name) in (1..).zip(names) {
            let id = self.id(name);
            self.expect(Call::command(("counter", &id), "add", json!(at)), json!(at)).await?;
        }
        for (at, name) in (1..).zip(names) {
            let id = self.id(name);
            let get = Call::query(("counter", &id), "get", Value::Null);
            self.expect(get, json!(at)).await?;
        }
        Ok(())
    }

    /// Many calls at the same time.
    pub(crate) async fn many(&self) -> Result<()> {
        let id = self.id("many");
        let all = (0..60).map(|at| {
            let call = Call::command(("counter", &id), "add", json!(1));
            self.call(if at % 2 == 0 { call.keyed() } else { call })
        });
        let mut sums = Vec::new();
        for answer in try_join_all(all).await? {
            sums.push(value(answer)?.as_u64().context("a sum")?);
        }
        sums.sort_unstable();
        ensure!(sums.iter().copied().eq(1..=60), "{sums:?}");
        Ok(())
    }

    /// A deadline that passes while the entity is busy.
    pub(crate) async fn deadlines(&self) -> Result<()> {
        // Loops for as many million steps as its id says: for some seconds.
        let busy = format!("1500{}", self.prefix.len());
        let entity = ("misbehaving", busy.as_str());
        let late = self.call(Call::query(entity, "work", Value::Null).within(300)).await?;
        ensure!(matches!(&late, Err((outcome, _)) if outcome == "unanswered"), "{late:?}");
        Ok(())
    }

    /// A channel from its beginning, from a version, and behind a cursor.
    pub(crate) async fn channels(&self) -> Result<()> {
        let id = self.id("channels");
        let room = ("chat", id.as_str());
        self.expect(Call::command(room, "join", json!({"name": "ann"})), Value::Null).await?;
        let mut versions = Vec::new();
        for text in ["one", "two", "three"] {
            let post = Call::command(room, "post", json!({"name": "ann", "text": text}));
            versions.push(self.call(post).await?.map_err(|error| anyhow::anyhow!("{error:?}"))?.1);
        }
        let follow = async |from: Value, count| {
            let items = self.caller.follow(self.client, room, ("messages", from), count).await?;
            items.map_err(|code| anyhow::anyhow!(code))
        };
        let all = follow(json!({"from": "oldest"}), 3).await?;
        let texts: Vec<_> = all.iter().map(|(item, ..)| item["text"].clone()).collect();
        ensure!(texts == [json!("one"), json!("two"), json!("three")], "{all:?}");
        ensure!(all.iter().map(|(_, version, _)| *version).eq(versions.clone()), "{all:?}");
        let rest = follow(json!({"from": {"version": versions[0]}}), 2).await?;
        ensure!(rest == all[1..], "{rest:?}");
        let last = follow(json!({"after": all[1].2}), 1).await?;
        ensure!(last == all[2..], "{last:?}");
        let refused = self.caller.follow(self.client, ("nope", &id), ("x", json!({})), 1).await?;
        ensure!(refused == Err("unknown-type".into()), "{refused:?}");
        Ok(())
    }
}
