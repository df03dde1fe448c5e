//! Looks at the stores outside the nodes without starting a node.

use ostraca_config::Config;
use ostraca_store::StoreIdentity;
use ostraca_store_etcd::EtcdStore;
use ostraca_store_postgres::PostgresStore;

use crate::blocking::block_on_own_thread;
use crate::error::NodeError;

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

/// Asks PostgreSQL and etcd, if the configuration names them, whose stores they have. Nothing is written. Blocks.
///
/// # Errors
/// [`NodeError::Settings`] if the node's certificate cannot be used, [`NodeError::OpenPostgres`] and
/// [`NodeError::OpenEtcd`] if a store cannot be opened or belongs to another cluster.
pub fn probe_stores(config: &Config) -> Result<Vec<ProbedStore>, NodeError> {
    if !config.has_rows_outside() {
        return Ok(Vec::new());
    }
    let cluster = config.load_identity()?.0.cluster;
    block_on_own_thread(async {
        let (postgres, etcd) = (config.postgres_options(), config.etcd_options());
        let mut found = Vec::new();
        if let Some(mut options) = postgres {
            options.cluster = Some(cluster);
            let identity = PostgresStore::probe(&options).await?;
            let holds = if etcd.is_some() { "state" } else { "state and rows" };
            found.push(ProbedStore { holds, place: options.place(), identity });
        }
        if let Some(mut options) = etcd {
            options.cluster = Some(cluster);
            let place = options.place();
            let identity = EtcdStore::probe(options).await?;
            found.push(ProbedStore { holds: "rows", place, identity });
        }
        Ok(found)
    })
}
