//! Looks at the stores outside the nodes, or accepts them, without starting a node.

use ostraca_config::Config;
use ostraca_store::{EntityStore, StoreIdentity};
use ostraca_store_postgres::{OpenError, Options, PostgresStore};

use crate::blocking::block_on_own_thread;
use crate::error::NodeError;
use crate::stores::rows_store;

/// A store outside the nodes, as it was found.
#[derive(Clone, Debug)]
pub struct ProbedStore {
    /// What it has: `state`, `rows` or `state and rows`.
    pub holds: &'static str,
    /// Where it is, in words.
    pub place: String,
    /// What it says about itself; openings are not counted.
    pub identity: StoreIdentity,
}

/// Asks PostgreSQL, etcd and Kubernetes, if the configuration names them, whose stores they have. Nothing is written.
/// Blocks.
///
/// # Errors
/// [`NodeError::Settings`] if the node's certificate cannot be used; [`NodeError::OpenPostgres`],
/// [`NodeError::OpenEtcd`] and [`NodeError::OpenKubernetes`] if a store cannot be opened or belongs to another cluster.
pub fn probe_stores(config: &Config) -> Result<Vec<ProbedStore>, NodeError> {
    if !config.has_rows_outside() {
        return Ok(Vec::new());
    }
    let cluster = config.load_identity()?.0.cluster;
    block_on_own_thread(async {
        let (postgres, rows) = (config.postgres_options(), config.rows_store());
        let mut found = Vec::new();
        if let Some(mut options) = postgres {
            options.cluster = Some(cluster);
            let identity = PostgresStore::probe(&options).await?;
            let holds = if rows.is_some() { "state" } else { "state and rows" };
            found.push(ProbedStore { holds, place: options.place(), identity });
        }
        for mut options in config.further_databases() {
            options.cluster = Some(cluster);
            let identity = PostgresStore::probe(&options).await?;
            found.push(ProbedStore { holds: "state", place: options.place(), identity });
        }
        if let Some(rows) = rows {
            let place = rows.place();
            let identity = rows_store::probe(rows.of_cluster(cluster)).await?;
            found.push(ProbedStore { holds: "rows", place, identity });
        }
        Ok(found)
    })
}

/// Accepts the PostgreSQL server of the configuration as it is now, although it may lack acknowledged turns (R5). Blocks.
///
/// # Errors
/// [`NodeError::InvalidValue`] if the state is not in PostgreSQL, [`NodeError::Settings`] if the node's certificate
/// cannot be used, [`NodeError::OpenPostgres`] if the database cannot be reached or belongs to another cluster.
pub fn accept_database(config: &Config) -> Result<ProbedStore, NodeError> {
    let Some(mut options) = config.postgres_options() else {
        let why = "the configuration names no PostgreSQL server (`postgres.url`)";
        return Err(NodeError::InvalidValue(why.into()));
    };
    options.cluster = Some(config.load_identity()?.0.cluster);
    block_on_own_thread(async {
        let identity = PostgresStore::accept_server(&options).await?;
        for further in config.further_databases() {
            let further = Options { cluster: options.cluster, ..further };
            PostgresStore::accept_server(&further).await?;
        }
        Ok(ProbedStore { holds: "state", place: options.place(), identity })
    })
}

/// Creates the tables in each further database of the configuration that has none, so that shards can be moved there.
/// Returns all of them, and whether each is new. Blocks.
///
/// # Errors
/// [`NodeError::InvalidValue`] if the configuration names no further database, [`NodeError::Settings`] if the node's
/// certificate cannot be used, [`NodeError::OpenPostgres`] if a database cannot be reached or belongs to another cluster.
pub fn add_databases(config: &Config) -> Result<Vec<(ProbedStore, bool)>, NodeError> {
    let further = config.further_databases();
    let Some(first) = config.postgres_options().filter(|_| !further.is_empty()) else {
        let why = "the configuration names no further database (`postgres.databases`)";
        return Err(NodeError::InvalidValue(why.into()));
    };
    let cluster = config.load_identity()?.0.cluster;
    block_on_own_thread(async {
        let first = Options { cluster: Some(cluster), ..first };
        let name = PostgresStore::probe(&first).await?.cluster_name;
        let mut added = Vec::new();
        for options in further {
            let options = Options { cluster: Some(cluster), ..options };
            let (identity, is_new) = match PostgresStore::probe(&options).await {
                Err(OpenError::Missing) => {
                    let store = PostgresStore::create(options.clone(), cluster, &name).await?;
                    (EntityStore::identity(&store), true)
                }
                found => (found?, false),
            };
            let place = options.place();
            added.push((ProbedStore { holds: "state", place, identity }, is_new));
        }
        Ok(added)
    })
}
