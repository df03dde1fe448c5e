//! Observes a cluster by asking its nodes directly, bypassing the proxies.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ostraca_client::{Client, Profile};
use ostraca_core::hash::shard_of;
use tokio::time::timeout;

use super::{Cluster, TIMEOUT, View, impatient};
use crate::artifacts;

/// Timeout of a request that observes a node.
const GLANCE: Duration = Duration::from_secs(3);

impl Cluster {
    /// Runs a command of the program that contacts this node directly.
    ///
    /// # Errors
    /// If it cannot be run. A failure of the command itself is in the output.
    pub async fn command(&self, node: usize, arguments: &[&str]) -> Result<Output> {
        let mut command = self.command_line(node)?;
        command.args(arguments);
        Ok(tokio::task::spawn_blocking(move || command.output()).await??)
    }

    /// A command of the program, with a profile that contains only this node.
    ///
    /// # Errors
    /// If the profile cannot be written.
    pub fn command_line(&self, node: usize) -> Result<Command> {
        let mut command = Command::new(artifacts::ostraca()?);
        command.arg("--profile").arg(self.profile_file(node)?);
        Ok(command)
    }

    /// A profile that contains only this node, in a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn profile_file(&self, node: usize) -> Result<PathBuf> {
        let path = self.members[node].home.dir().with_file_name("direct.toml");
        self.direct(node).save(&path)?;
        Ok(path)
    }

    fn direct(&self, node: usize) -> Profile {
        let addresses = vec![self.members[node].listen.to_string()];
        Profile { addresses, ..self.profile.clone() }
    }

    /// A client of this node only, bypassing its proxy.
    ///
    /// # Errors
    /// If the node does not respond.
    pub async fn watcher(&mut self, node: usize) -> Result<&Client> {
        if self.members[node].watcher.is_none() {
            let connect = Client::connect_with(self.direct(node), impatient());
            let client = timeout(GLANCE, connect).await.context("no response")??;
            self.members[node].watcher = Some(client);
        }
        self.members[node].watcher.as_ref().context("no watcher")
    }

    /// Reads the events of every node.
    ///
    /// # Errors
    /// If a node reports a lapsed lease or a dead node, or does not respond.
    pub async fn check_no_lease_lapsed(&mut self) -> Result<()> {
        for node in 0..self.len() {
            let name = self.name(node);
            let mut events = self.watcher(node).await?.events(false, 0).await?;
            while let Some(page) = events.next().await? {
                for event in page.events {
                    let lost = ["lease-lapsed", "node-dead"].contains(&event.kind.as_str());
                    ensure!(!lost, "{name} reports: {}", event.message);
                }
            }
        }
        Ok(())
    }

    /// The cluster as this node sees it now.
    ///
    /// # Errors
    /// If the node does not respond.
    pub async fn view_of(&mut self, node: usize) -> Result<View> {
        self.process(node)?;
        let client = self.watcher(node).await?;
        let both =
            async { Ok::<_, anyhow::Error>((client.nodes().await?, client.shards().await?)) };
        let (nodes, shards) = timeout(GLANCE, both).await.context("no response")??;
        Ok(View { nodes, shards })
    }

    /// The cluster as the manager sees it, since only the manager knows which shards are served; otherwise as the
    /// first responding node sees it.
    ///
    /// # Errors
    /// If no node responds.
    pub async fn view(&mut self) -> Result<View> {
        let mut last = anyhow::anyhow!("no node is running");
        for node in 0..self.len() {
            if self.members[node].paused || !self.runs(node) {
                continue;
            }
            match self.view_of(node).await {
                Ok(view) => {
                    let manager = view.manager().and_then(|name| self.place(name));
                    let Some(manager) = manager.filter(|manager| *manager != node) else {
                        return Ok(view);
                    };
                    if self.members[manager].paused || !self.runs(manager) {
                        return Ok(view);
                    }
                    return Ok(self.view_of(manager).await.unwrap_or(view));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Polls until the condition holds.
    ///
    /// # Errors
    /// After [`TIMEOUT`], with the last view.
    pub async fn wait(&mut self, what: &str, found: impl FnMut(&View) -> bool) -> Result<View> {
        self.wait_for(TIMEOUT, what, found).await
    }

    /// Polls until the condition holds, for at most `limit`.
    ///
    /// # Errors
    /// After `limit`, with the last view.
    pub async fn wait_for(
        &mut self,
        limit: Duration,
        what: &str,
        mut found: impl FnMut(&View) -> bool,
    ) -> Result<View> {
        let until = Instant::now() + limit;
        loop {
            let view = self.view().await;
            match view {
                Ok(view) if found(&view) => return Ok(view),
                Ok(view) if Instant::now() > until => {
                    bail!("waited for {limit:?} until {what}; last view:\n{view}")
                }
                Err(error) if Instant::now() > until => {
                    return Err(error.context(format!("waited for {limit:?} until {what}")));
                }
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Waits until every shard has a live owner that serves it, and there is a manager.
    ///
    /// # Errors
    /// Those of [`Cluster::wait`].
    pub async fn wait_settled(&mut self) -> Result<View> {
        let shards = self.all_shards();
        self.wait("every shard is served", |view| view.settled(shards)).await
    }

    /// The manager's index.
    ///
    /// # Errors
    /// If there is none within the timeout.
    pub async fn manager(&mut self) -> Result<usize> {
        let view = self.wait("there is a manager", |view| view.manager().is_some()).await?;
        view.manager().and_then(|name| self.place(name)).context("no manager")
    }

    /// The index of a shard's owner.
    ///
    /// # Errors
    /// If there is no owner within the timeout.
    pub async fn owner_of(&mut self, shard: u32) -> Result<usize> {
        let view = self.wait("the shard has an owner", |view| view.owner(shard).is_some()).await?;
        view.owner(shard).and_then(|name| self.place(name)).context("no owner")
    }

    /// The first `count` ids that consist of `prefix` and a number and whose shard this node owns.
    ///
    /// # Errors
    /// If a shard has no owner within the timeout, or the node owns too few.
    pub async fn ids_owned_by(
        &mut self,
        node: usize,
        prefix: &str,
        count: usize,
    ) -> Result<Vec<String>> {
        let mut ids = Vec::new();
        for id in (0..100 * count + 100).map(|number| format!("{prefix}{number}")) {
            if ids.len() < count && self.owner_of(shard_of(&id, self.shards).0).await? == node {
                ids.push(id);
            }
        }
        ensure!(ids.len() == count, "{} owns only {} of these ids", self.name(node), ids.len());
        Ok(ids)
    }
}
