//! Where a cluster's stores are, and the servers that have them if no node does.

use nix::sys::signal::Signal;
use ostraca_test_servers::kubernetes::{ApiServer, Rates};
use ostraca_test_servers::patroni::Patroni;
use ostraca_test_servers::proxy::Proxy;
use ostraca_test_servers::{etcd, postgres};

use super::{Cluster, NO_STORE};
use crate::proxy::{Endpoint, Rule};

/// What goes wrong with a few of the requests to Kubernetes all the time. None of it ends a lease.
const FAULTS: Rates = Rates {
    cut_before: 10,
    cut_after: 10,
    throttled: 2,
    timed_out: 10,
    unavailable: 10,
    conflicts: 10,
    slow: 100,
    watch_ends: 20,
    watch_expires: 100,
    page_expires: 20,
    // `ostraca init` would have to be repeated.
    creations_in_doubt: false,
};

/// Where the state of entities and the cluster's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Both in the first node.
    Node,
    /// The state in the first node, the rows in etcd.
    NodeAndEtcd,
    /// Both in PostgreSQL.
    Postgres,
    /// The state in PostgreSQL, the rows in etcd.
    PostgresAndEtcd,
    /// The state in PostgreSQL, the rows in Kubernetes, whose API server fails at random.
    PostgresAndKubernetes,
    /// The state in two PostgreSQL servers under Patroni, the rows in the etcd that Patroni uses.
    PatroniAndEtcd,
}

impl Stores {
    fn has_database(self) -> bool {
        !matches!(self, Self::Node | Self::NodeAndEtcd)
    }

    fn has_etcd(self) -> bool {
        matches!(self, Self::NodeAndEtcd | Self::PostgresAndEtcd | Self::PatroniAndEtcd)
    }

    /// The roles of a node that has these ones if the stores are in the first node.
    pub(super) fn roles(self, roles: &str) -> String {
        match self.has_database() {
            true => {
                let left: Vec<_> = roles.split(',').filter(|role| *role != "store").collect();
                if left.is_empty() { NO_STORE.into() } else { left.join(",") }
            }
            false => roles.into(),
        }
    }

    /// A suffix for names.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Node => "",
            Self::NodeAndEtcd => "-etcd",
            Self::Postgres => "-pg",
            Self::PostgresAndEtcd => "-pg-etcd",
            Self::PostgresAndKubernetes => "-pg-kube",
            Self::PatroniAndEtcd => "-patroni",
        }
    }
}

/// The servers with the stores, and each node's way to them.
pub(super) struct StoreServers {
    pub(super) stores: Stores,
    pub(super) database: Option<postgres::Server>,
    pub(super) etcd: Option<etcd::Cluster>,
    pub(super) kubernetes: Option<ApiServer>,
    pub(super) patroni: Option<Patroni>,
    /// The name of the database.
    name: String,
    /// A proxy of each node to each server.
    ways: Vec<Vec<Proxy>>,
}

impl StoreServers {
    /// Starts the servers that these stores need: one of PostgreSQL, three of etcd, one API server.
    pub(super) fn start(stores: Stores) -> Self {
        let has_one_server = stores.has_database() && stores != Stores::PatroniAndEtcd;
        let database = has_one_server.then(|| postgres::Server::start(""));
        let etcd = stores.has_etcd().then(|| etcd::Cluster::start(3));
        let patroni = match (&etcd, stores) {
            (Some(etcd), Stores::PatroniAndEtcd) => Some(Patroni::start(etcd)),
            _ => None,
        };
        let kubernetes = (stores == Stores::PostgresAndKubernetes).then(|| {
            let server = ApiServer::start();
            server.inject(Some(FAULTS), 1);
            server
        });
        let name = database.as_ref().map(postgres::Server::database).unwrap_or_default();
        Self { stores, database, etcd, kubernetes, patroni, name, ways: Vec::new() }
    }

    /// The arguments of `ostraca init` for the next node.
    pub(super) async fn next_arguments(&mut self) -> Vec<String> {
        let (mut ways, mut arguments) = (Vec::new(), Vec::new());
        if let Some(database) = &self.database {
            let way = Proxy::start(database.port()).await;
            let url =
                format!("host=127.0.0.1 port={} user=postgres dbname={}", way.port(), self.name);
            arguments.extend(["--postgres".into(), url]);
            ways.push(way);
        }
        if let Some(patroni) = &self.patroni {
            let mut ports = Vec::new();
            for port in patroni.ports() {
                let way = Proxy::start(port).await;
                ports.push(way.port().to_string());
                ways.push(way);
            }
            let url = format!(
                "host=127.0.0.1,127.0.0.1 port={} user=postgres dbname=postgres target_session_attrs=read-write",
                ports.join(",")
            );
            arguments.extend(["--postgres".into(), url]);
        }
        if let Some(etcd) = &self.etcd {
            let mut members = Vec::new();
            for member in 0..3 {
                let way = Proxy::start(etcd.port(member)).await;
                members.push(format!("127.0.0.1:{}", way.port()));
                ways.push(way);
            }
            arguments.extend(["--etcd".into(), members.join(",")]);
        }
        if let Some(server) = &self.kubernetes {
            let way = Proxy::start(server.port()).await;
            let url = format!("http://127.0.0.1:{}", way.port());
            let namespace = "default".into();
            arguments.extend([
                "--kubernetes".into(),
                url,
                "--kubernetes-namespace".into(),
                namespace,
            ]);
            ways.push(way);
        }
        self.ways.push(ways);
        arguments
    }

    /// Lets nothing pass between a node and the servers, or everything again.
    fn hold(&self, node: usize, hold: bool) {
        for way in &self.ways[node] {
            way.hold_answers(hold);
            if hold { way.stop_after(0) } else { way.go_on() }
        }
    }

    /// Lets everything pass again.
    pub(super) fn heal(&self) {
        (0..self.ways.len()).for_each(|node| self.hold(node, false));
    }
}

impl Cluster {
    /// Where the stores are.
    #[must_use]
    pub fn stores(&self) -> Stores {
        self.servers.stores
    }

    /// The PostgreSQL server with the state.
    ///
    /// # Panics
    /// If it is in a node.
    #[must_use]
    #[allow(clippy::expect_used, reason = "a test that uses a server it did not request is wrong")]
    pub fn database(&mut self) -> &mut postgres::Server {
        self.servers.database.as_mut().expect("this cluster has no database")
    }

    /// Kills the PostgreSQL server, and lets its standby take over: all nodes reach that one from then on.
    ///
    /// # Panics
    /// If the state is in a node.
    pub fn fail_over(&mut self, standby: postgres::Server) {
        let primary = self.database();
        primary.stop(Signal::SIGKILL);
        standby.promote();
        // It has no standby itself.
        standby.stop_replicating();
        let port = standby.port();
        self.servers.database = Some(standby);
        for ways in &self.servers.ways {
            // The way to PostgreSQL is the first one.
            ways.iter().take(1).for_each(|way| way.redirect(port));
        }
    }

    /// The PostgreSQL servers under Patroni.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    #[allow(clippy::expect_used, reason = "a test that uses servers it did not request is wrong")]
    pub fn patroni(&mut self) -> &mut Patroni {
        self.servers.patroni.as_mut().expect("this cluster has no Patroni")
    }

    /// The etcd cluster with the rows.
    ///
    /// # Panics
    /// If they are elsewhere.
    #[must_use]
    #[allow(clippy::expect_used, reason = "a test that uses a server it did not request is wrong")]
    pub fn etcd(&mut self) -> &mut etcd::Cluster {
        self.servers.etcd.as_mut().expect("this cluster has no etcd")
    }

    /// Cuts a node off from the stores, which may be in the first node, until everything is healed.
    pub fn cut_from_stores(&self, node: usize) {
        self.servers.hold(node, true);
        if !self.servers.stores.has_database() {
            let (one, other) = (Endpoint::Node(0), Endpoint::Node(node));
            self.network().set(one, other, Rule::CUT);
            self.network().set(other, one, Rule::CUT);
        }
    }
}
