//! Copies the stores of a stopped cluster to another place: from a node to PostgreSQL, and back.

mod restore;

use std::time::Duration;

use ostraca_catalog::rows::{self, StoresRow};
use ostraca_config::Config;
use ostraca_core::ids::ClusterId;
use ostraca_store::transfer::{
    CopyError, CopySource, CopyTarget, Destination, Item, Progress, Summary, copy,
};
use ostraca_store::{StoreError, StoreIdentity, StoredRow};
use ostraca_store_postgres::{Options, PostgresCopySource, PostgresCopyTarget, Tls};
use ostraca_store_sled::{SledCopySource, SledCopyTarget};
use tokio::time::sleep;

use crate::blocking::block_on_own_thread;
use crate::error::NodeError;
use crate::init::PostgresSettings;

/// How long a database is watched for changes, which running nodes make all the time: longer than the default lease.
const WATCHED: Duration = Duration::from_secs(4);

pub use restore::{renew_database, restore_backup};

/// A place of a cluster's stores.
#[derive(Clone, Debug)]
pub enum StorePlace {
    /// Where the configuration of a node says.
    Config(Box<Config>),
    /// A PostgreSQL database.
    Postgres(PostgresSettings),
}

/// A copy that was compared with its source.
#[derive(Clone, Debug)]
pub struct CopiedStores {
    /// Where the copy is.
    pub destination: Destination,
    /// The cluster.
    pub cluster: ClusterId,
    /// The cluster's name.
    pub cluster_name: String,
    /// Number and size of what was copied.
    pub summary: Summary,
}

/// A place, with what is needed to open it.
enum Opening {
    Sled { dir: std::path::PathBuf, options: ostraca_store_sled::Options },
    Postgres(Options),
}

impl Opening {
    fn new(place: &StorePlace) -> Result<Self, NodeError> {
        let config = match place {
            StorePlace::Config(config) => config,
            StorePlace::Postgres(settings) => return database(settings).map(Self::Postgres),
        };
        if let Some(rows) = config.rows_store() {
            let why = format!(
                "the rows of this cluster are in {}: this release copies only stores that have both state and rows",
                rows.place()
            );
            return Err(NodeError::InvalidValue(why));
        }
        if !config.further_databases().is_empty() {
            let why =
                "the state of this cluster is in several databases: this release copies only one";
            return Err(NodeError::InvalidValue(why.into()));
        }
        let cluster = Some(config.load_identity()?.0.cluster);
        if let Some(options) = config.postgres_options() {
            return Ok(Self::Postgres(Options { cluster, ..options }));
        }
        if !config.roles().store {
            let why = format!(
                "the node {} does not have the cluster's store: name the configuration of the one with the role \
                 `store`",
                config.node
            );
            return Err(NodeError::InvalidValue(why));
        }
        let options = ostraca_store_sled::Options { cluster, ..config.store_options() };
        Ok(Self::Sled { dir: config.store_dir(), options })
    }

    fn cluster(&self) -> Option<ClusterId> {
        match self {
            Self::Sled { options, .. } => options.cluster,
            Self::Postgres(options) => options.cluster,
        }
    }

    /// Opens the source, which no process may be using.
    async fn source(self) -> Result<Box<dyn CopySource>, NodeError> {
        match self {
            Self::Sled { dir, options } => Ok(Box::new(SledCopySource::open(&dir, &options)?)),
            Self::Postgres(options) => {
                let source = PostgresCopySource::open(options).await?;
                if source.moved_to().is_none() {
                    sleep(WATCHED).await;
                    if source.is_in_use().await? {
                        return Err(NodeError::ClusterRuns);
                    }
                }
                Ok(Box::new(source))
            }
        }
    }

    /// Creates the target, or continues it. A witness that it may have is of the store before.
    async fn target(self, from: &StoreIdentity) -> Result<Box<dyn CopyTarget>, NodeError> {
        match self {
            Self::Sled { dir, options } => {
                let options = ostraca_store_sled::Options { witness: None, ..options };
                Ok(Box::new(SledCopyTarget::open(&dir, &options, from)?))
            }
            Self::Postgres(options) => Ok(Box::new(PostgresCopyTarget::open(options, from).await?)),
        }
    }
}

/// The settings of connections to a database, as they were given.
fn database(settings: &PostgresSettings) -> Result<Options, NodeError> {
    Options::check_url(&settings.url).map_err(|why| {
        NodeError::InvalidValue(format!("the PostgreSQL address cannot be used: {why}"))
    })?;
    let tls = match settings.tls {
        Some(true) => Tls::Verify { ca: settings.ca_file.clone() },
        Some(false) => Tls::Off,
        None if Options::is_local(&settings.url) => Tls::Off,
        None => {
            let why = "the database is on another machine: say whether the connection is encrypted, with \
                       `--postgres-tls verify` or `--postgres-tls off`";
            return Err(NodeError::InvalidValue(why.into()));
        }
    };
    let password_file = settings.password_file.clone();
    Ok(Options { password_file, tls, ..Options::new(settings.url.as_str()) })
}

/// Copies the state and rows of a stopped cluster, compares the copy with its source, and marks the source as moved: no
/// node opens it from then on (R26). Continues an interrupted copy. Blocks.
///
/// # Errors
/// [`NodeError::ClusterRuns`] if nodes use the source, [`NodeError::Copy`] if the copy cannot go on, and the errors of
/// opening a store.
pub fn copy_stores(
    from: &StorePlace,
    to: &StorePlace,
    progress: &mut Progress<'_>,
) -> Result<CopiedStores, NodeError> {
    let (source, target) = (Opening::new(from)?, Opening::new(to)?);
    if let (Some(one), Some(other)) = (source.cluster(), target.cluster())
        && one != other
    {
        let why = format!("the nodes belong to two clusters, {one} and {other}");
        return Err(NodeError::InvalidValue(why));
    }
    block_on_own_thread(async move {
        let mut source = source.source().await?;
        let rewrite = |item, from, to, _| name_store(item, from, to);
        copy_to(&mut *source, target, &rewrite, progress).await
    })
}

/// Changes an item for a target: gets the ids of source and target, and when the copy began, in seconds since 1970.
type RewriteFor<'a> = dyn Fn(Item, u128, u128, u64) -> Result<Item, StoreError> + Sync + 'a;

/// Copies a source to a target, whose node then knows the new store.
async fn copy_to(
    source: &mut dyn CopySource,
    target: Opening,
    rewrite: &RewriteFor<'_>,
    progress: &mut Progress<'_>,
) -> Result<CopiedStores, NodeError> {
    let from = source.identity();
    if let Some(expected) = target.cluster().filter(|expected| *expected != from.cluster) {
        let why = format!(
            "the source belongs to the cluster {} ({}), the target's node to {expected}",
            from.cluster_name, from.cluster
        );
        return Err(NodeError::InvalidValue(why));
    }
    let witness = match &target {
        Opening::Sled { options, .. } => options.witness.clone(),
        Opening::Postgres(_) => None,
    };
    let mut target = target.target(&from).await?;
    let store_id = target.identity().store_id;
    let began = target.state().began_unix_s;
    let rewrite = |item| rewrite(item, from.store_id, store_id, began);
    let summary = copy(source, &mut *target, &rewrite, progress).await?;
    if let Some(path) = witness {
        // What the node knew was about the store before.
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(NodeError::File { action: "remove", path, source });
            }
            _ => {}
        }
    }
    Ok(CopiedStores {
        destination: Destination { store_id, place: target.place() },
        cluster: from.cluster,
        cluster_name: from.cluster_name,
        summary,
    })
}

/// Lets the row that names the store of the state name the target.
fn name_store(item: Item, from: u128, to: u128) -> Result<Item, StoreError> {
    let Item::Row { key, value } = item else { return Ok(item) };
    if key != rows::stores_key() {
        return Ok(Item::Row { key, value });
    }
    let damaged = |error: ostraca_catalog::Error| StoreError::Corrupt(error.to_string());
    let row = StoredRow { key: key.clone(), revision: 0, value };
    let mut stores: StoresRow = rows::decode(&row).map_err(damaged)?;
    for range in &mut stores.ranges {
        if range.store_id != from {
            let other = range.store_id;
            let text = format!("the row `{key}` names the store {other:032x}, not the source");
            return Err(StoreError::Corrupt(text));
        }
        range.store_id = to;
    }
    Ok(Item::Row { key, value: rows::encode_value(&stores).map_err(damaged)? })
}

impl From<CopyError> for NodeError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Store(error) => error.into(),
            error => Self::Copy(error),
        }
    }
}
