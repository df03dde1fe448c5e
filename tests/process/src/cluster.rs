//! A cluster of real processes, each behind its own proxy: starts, breaks, observes and removes it.
//!
//! Nodes are created as an operator creates them, with `ostraca init`, `ostraca init --join` and `ostraca run`. Node
//! `n1` has the store and starts first. Each node listens on its own address in 127.0.0.0/8, on a port outside the
//! ephemeral range, so its address is free when it starts again.
//!
//! Confusing at first: clients and nodes use the proxies ([`Cluster::network`]), but the tests' own requests
//! ([`Cluster::view`]) go to the nodes directly, so a node that is cut off can still be observed.

mod faults;
mod observe;
mod pods;
mod stores;
mod view;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use ostraca_client::{Client, ConnectOptions, NewPool, Profile};
use ostraca_core::format;
use ostraca_wire::Limits;
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use self::stores::StoreServers;
pub use self::stores::Stores;
pub use self::view::View;
use crate::artifacts;
use crate::io_recorder::{self, IoRecorder};
use crate::node::NodeProcess;
use crate::node_dir::NodeDir;
use crate::proxy::Network;

/// The port on which every node listens, at its own address.
const PORT: u16 = 7411;
/// The port on which every node's proxy listens.
const FRONT: u16 = 7412;
/// The port of every node's HTTP gateway, if it has one.
const HTTP: u16 = 7480;
/// The port of its metrics.
const METRICS: u16 = 7481;
/// Every role.
pub const ALL: &str = "store,manager,host,gateway";
/// Every role except the store.
pub const NO_STORE: &str = "manager,host,gateway";
/// Timeout of every wait, generous enough for a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// How many clusters of one program run at the same time, if it runs as many tests. Most of them wait most of the time.
static TURNS: Semaphore = Semaphore::const_new(3);
/// Counts the addresses that this process has used.
static ADDRESSES: AtomicU32 = AtomicU32::new(0);

/// The options of a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// A name for its directories.
    pub name: String,
    /// The roles of each node, separated by commas; the first node has the store, unless a database has it.
    pub roles: Vec<String>,
    /// Number of nodes that start with the cluster; the others are started later with [`Cluster::start_node`].
    pub at_once: usize,
    /// Number of shards in the pool.
    pub shards: u32,
    /// TOML that overrides settings of every node's configuration.
    pub settings: String,
    /// Whether there are proxies; without proxies, nodes advertise their listening addresses.
    pub proxied: bool,
    /// The seed of the network's faults.
    pub seed: u64,
    /// Additional delay of each sync of the store.
    pub slow_syncs: Option<Duration>,
    /// Whether each node has an HTTP gateway, which clients reach without a proxy, and serves metrics.
    pub http: bool,
    /// TOML with more settings of every gateway.
    pub http_settings: String,
    /// Whether each node is in a pod, about which the managers ask.
    pub pods: bool,
    /// Where the stores are; the cluster starts the servers that they need.
    pub stores: Stores,
}

impl Options {
    /// Creates options for nodes with these roles.
    #[must_use]
    pub fn new(name: &str, roles: &[&str]) -> Self {
        Self {
            name: name.into(),
            roles: roles.iter().map(|roles| (*roles).into()).collect(),
            at_once: roles.len(),
            shards: 24,
            settings: String::new(),
            proxied: true,
            seed: 0,
            slow_syncs: None,
            http: false,
            http_settings: String::new(),
            pods: false,
            stores: Stores::Node,
        }
    }

    /// The same, with its stores elsewhere: no node has the role `store` if the state is in a database.
    #[must_use]
    pub fn on(self, stores: Stores) -> Self {
        let roles = self.roles.iter().map(|roles| stores.roles(roles)).collect();
        Self { name: self.name + stores.suffix(), roles, stores, ..self }
    }

    /// Options for three nodes: the first has every role, the others every role except the store.
    #[must_use]
    pub fn three(name: &str) -> Self {
        Self::new(name, &[ALL, NO_STORE, NO_STORE])
    }
}

/// The arguments of `ostraca init` for cluster-wide settings.
fn agreed(settings: &str) -> Result<Vec<String>> {
    let table: toml::Table = settings.parse().context("parse the settings")?;
    let stated = ["lease", "lease-margin", "entities.lane-ttl"].into_iter().filter_map(|name| {
        let value = match name.split_once('.') {
            Some((section, key)) => table.get(section)?.get(key)?,
            None => table.get(name)?,
        };
        let value = value.as_str()?;
        Some(["--set".to_owned(), format!("{name}={value}")])
    });
    Ok(stated.flatten().collect())
}

/// The program of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// `ostraca`.
    This,
    /// A later one, whose newest format is this, but which has the same version: shards are balanced among both.
    Later(u8),
    /// A later one with this version. 1.2.3 is 1,002,003.
    Version(u64),
}

impl Release {
    fn program(self) -> Result<Command> {
        Ok(match self {
            Self::This => Command::new(artifacts::ostraca()?),
            Self::Later(format) => {
                let mut program = Command::new(artifacts::next_release()?);
                program.env("OSTRACA_FORMAT", format.to_string());
                program
            }
            Self::Version(version) => {
                let mut program = Self::Later(self.format()).program()?;
                program.env("OSTRACA_VERSION", version.to_string());
                program
            }
        })
    }

    /// The newest format that it knows.
    #[must_use]
    pub fn format(self) -> u8 {
        match self {
            Self::This => format::RELEASE,
            Self::Later(format) => format,
            Self::Version(_) => format::RELEASE + 1,
        }
    }
}

/// A running cluster. Its processes are killed by process id when the value is dropped.
pub struct Cluster {
    members: Vec<Member>,
    /// The servers with the stores, if no node has them.
    servers: StoreServers,
    /// The network with its faults; `None` without proxies.
    network: Option<Network>,
    profile: Profile,
    /// Number of shards in the first pool.
    pub shards: u32,
    /// Number of shards in other pools that were created with [`Self::create_pool`].
    more_shards: u32,
    _turn: SemaphorePermit<'static>,
}

struct Member {
    // The process must end before its directory is removed.
    node: Option<NodeProcess>,
    watcher: Option<Client>,
    paused: bool,
    release: Release,
    /// The recorder, and the directory of its files.
    slow: Option<(IoRecorder, TempDir)>,
    home: NodeDir,
    listen: SocketAddr,
    reached: SocketAddr,
}

impl Cluster {
    /// Creates and starts a cluster; every node is ready.
    ///
    /// # Errors
    /// The program's error.
    pub async fn start(options: &Options) -> Result<Self> {
        let turn = TURNS.acquire().await.context("the clusters have ended")?;
        let mut addresses = Vec::new();
        for _ in &options.roles {
            let (listen, front) = addresses_of_a_node();
            addresses.push((listen, if options.proxied { front } else { listen }));
        }
        let network = match options.proxied {
            true => Some(Network::start(&addresses, options.seed)?),
            false => None,
        };
        let mut servers = StoreServers::start(options.stores);
        let mut members: Vec<Member> = Vec::new();
        for (place, (roles, (listen, reached))) in options.roles.iter().zip(&addresses).enumerate()
        {
            let name = format!("n{}", place + 1);
            let mut more = vec!["--node".into(), name, "--listen".into(), listen.to_string()];
            match members.first() {
                None => {
                    more.extend(["--shards".into(), options.shards.to_string()]);
                    more.extend(agreed(&options.settings)?);
                }
                Some(first) => {
                    let ca = first.home.dir().join("ca").display().to_string();
                    more.extend(["--ca".into(), ca]);
                    if options.stores == Stores::Node {
                        more.extend(["--join".into(), first.reached.to_string()]);
                    }
                }
            }
            more.extend(servers.next_arguments().await);
            let more: Vec<&str> = more.iter().map(String::as_str).collect();
            let home = NodeDir::make(&options.name, &more, |_| {})?;
            home.set(&options.settings)?;
            let roles = roles.split(',').collect::<Vec<_>>();
            home.set(&format!("roles = {roles:?}\nadvertise = [\"{reached}\"]"))?;
            if options.http {
                let ip = listen.ip();
                let more = &options.http_settings;
                home.set(&format!("[http]\nlisten = \"{ip}:{HTTP}\"\n{more}"))?;
                home.set(&format!("[metrics]\nlisten = \"{ip}:{METRICS}\""))?;
            }
            let slow = match options.slow_syncs {
                Some(slow) if place == 0 => {
                    let records = io_recorder::place()?;
                    let preload = IoRecorder::new(home.dir(), records.path(), false)?.slow(slow);
                    Some((preload, records))
                }
                _ => None,
            };
            members.push(Member {
                node: None,
                watcher: None,
                paused: false,
                release: Release::This,
                slow,
                home,
                listen: *listen,
                reached: *reached,
            });
        }
        let first = members.first().context("a cluster has a node")?;
        let profile = first.home.profile(first.listen)?;
        let shards = options.shards;
        let mut cluster =
            Self { members, servers, network, profile, shards, more_shards: 0, _turn: turn };
        for place in 0..options.at_once {
            if options.pods {
                cluster.put_into_pod(place)?;
            }
            cluster.start_node(place)?;
        }
        Ok(cluster)
    }

    /// Creates a pool with the role `host.` and its name, and waits until it is served.
    ///
    /// # Errors
    /// The node's error, or that no host serves it within the timeout.
    pub async fn create_pool(&mut self, client: &Client, name: &str, shards: u32) -> Result<()> {
        let role = format!("host.{name}");
        let pool = NewPool { name: name.into(), shards, role, ..NewPool::default() };
        client.pools(Some(pool)).await?;
        self.more_shards += shards;
        self.wait_settled().await?;
        Ok(())
    }

    /// Number of shards in all pools.
    #[must_use]
    pub fn all_shards(&self) -> u32 {
        self.shards + self.more_shards
    }

    /// Number of nodes, running or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether it has no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A node's name.
    #[must_use]
    pub fn name(&self, node: usize) -> String {
        format!("n{}", node + 1)
    }

    /// The index of the node with this name.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        (0..self.len()).find(|node| self.name(*node) == name)
    }

    /// The network with its faults.
    ///
    /// # Panics
    /// Without proxies.
    #[must_use]
    #[allow(clippy::panic, reason = "a test that uses a network it did not request is wrong")]
    pub fn network(&self) -> &Network {
        match &self.network {
            Some(network) => network,
            None => panic!("this cluster was started without proxies"),
        }
    }

    /// The address of a node's HTTP gateway.
    #[must_use]
    pub fn http_address(&self, node: usize) -> SocketAddr {
        SocketAddr::new(self.members[node].listen.ip(), HTTP)
    }

    /// The address of a node's metrics.
    #[must_use]
    pub fn metrics_address(&self, node: usize) -> SocketAddr {
        SocketAddr::new(self.members[node].listen.ip(), METRICS)
    }

    /// The node's directory.
    #[must_use]
    pub fn home(&self, node: usize) -> &NodeDir {
        &self.members[node].home
    }

    /// The administrator's profile, with every node's address as others reach it, starting with the node `first`.
    #[must_use]
    pub fn profile(&self, first: usize) -> Profile {
        let all = (0..self.len()).map(|more| (first + more) % self.len());
        let addresses = all.map(|node| self.members[node].reached.to_string()).collect();
        Profile { addresses, ..self.profile.clone() }
    }

    /// A client that prefers this node and uses the others when the node is gone, which the client detects quickly.
    ///
    /// # Errors
    /// If no node responds.
    pub async fn client(&self, first: usize) -> Result<Client> {
        Ok(Client::connect_with(self.profile(first), impatient()).await?)
    }

    /// The end of each node's log, without the lines of guests, to explain a failed test.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut all = String::new();
        for (place, member) in self.members.iter().enumerate() {
            let log = member.home.dir().with_file_name("node.log");
            let text = std::fs::read_to_string(log).unwrap_or_default();
            // Most lines come from guests and rarely show the cause.
            let lines: Vec<&str> =
                text.lines().filter(|line| !line.contains(" ostraca::guest: ")).collect();
            let last = lines[lines.len().saturating_sub(40)..].join("\n");
            all.push_str(&format!("--- n{}\n{last}\n", place + 1));
        }
        all
    }

    /// Stops every node gracefully, those without the store first.
    ///
    /// # Errors
    /// If a node does not stop gracefully.
    pub fn stop(mut self) -> Result<()> {
        for node in (0..self.len()).rev() {
            if self.members[node].paused {
                self.resume(node)?;
            }
            if self.runs(node) {
                self.term(node)?;
            }
        }
        Ok(())
    }

    /// Leaves everything running, and returns the processes to end and the directories to remove.
    #[must_use]
    pub fn leave_running(mut self) -> (Vec<u32>, Vec<PathBuf>) {
        let members = std::mem::take(&mut self.members);
        members
            .into_iter()
            .map(|member| {
                let pid = member.node.map_or(0, NodeProcess::leave_running);
                (pid, member.home.keep())
            })
            .unzip()
    }
}

/// A client that detects a dead node quickly.
#[must_use]
pub fn impatient() -> ConnectOptions {
    let (idle_timeout, keep_alive) = (Duration::from_millis(1_500), Duration::from_millis(300));
    let limits = Limits {
        idle_timeout,
        keep_alive_interval: keep_alive,
        ..ConnectOptions::default().limits
    };
    ConnectOptions { connect_timeout: Duration::from_secs(1), limits, ..ConnectOptions::default() }
}

/// The addresses of a node and of its proxy. They depend on the process id, so concurrent test processes use others.
fn addresses_of_a_node() -> (SocketAddr, SocketAddr) {
    let (process, number) = (std::process::id(), ADDRESSES.fetch_add(1, Ordering::Relaxed));
    let byte = |n: u32| u8::try_from(n % 250).unwrap_or(0);
    let ip = Ipv4Addr::new(127, 2 + byte(process / 250) % 200, byte(process), 1 + byte(number));
    (SocketAddr::from((ip, PORT)), SocketAddr::from((ip, FRONT)))
}
