//! The stores of a cluster for a command that works without a node.

use std::collections::BTreeSet;
use std::sync::Arc;

use ostraca_config::config::Config;
use ostraca_store::{ClusterStore, EntityStore, StoreIdentity};
use ostraca_store_sled::{Options, SledStore};
use tokio::runtime::Handle;

use super::OpenedStores;
use super::ranges;
use crate::error::NodeError;

/// Both stores of a cluster.
pub(crate) struct StoppedStores {
    pub(crate) rows: Arc<dyn ClusterStore>,
    pub(crate) state: Arc<dyn EntityStore>,
    /// The store with the rows.
    pub(crate) identity: StoreIdentity,
    /// The ids of the stores that have state.
    pub(crate) state_stores: BTreeSet<u128>,
    /// Whether both are one store in a node, whose directory this process has locked.
    pub(crate) is_embedded: bool,
    /// Where the rows are, in words.
    pub(crate) place: String,
}

/// Opens the stores that the configuration of a node names. This counts as an opening, as a start of the node does.
///
/// # Errors
/// [`NodeError::InvalidValue`] if they are in another node; [`NodeError::OpenStore`] and its like, also if a node has the
/// store open; [`NodeError::UnknownStore`].
pub(crate) async fn open_stopped(config: &Config) -> Result<StoppedStores, NodeError> {
    let cluster = config.load_identity()?.0.cluster;
    let has_database = config.postgres_options().is_some();
    if !has_database && !config.roles().store {
        let why = format!(
            "the node {} does not have the cluster's store: name the configuration of the one with the role `store`",
            config.node
        );
        return Err(NodeError::InvalidValue(why));
    }
    let mut own = None;
    if !has_database {
        let options = Options { cluster: Some(cluster), ..config.store_options() };
        own = Some(Arc::new(SledStore::open(&config.store_dir(), &options)?));
    }
    if let (Some(store), false) = (&own, config.has_rows_outside()) {
        let identity = SledStore::identity(store);
        return Ok(StoppedStores {
            rows: store.clone(),
            state: store.clone(),
            state_stores: [identity.store_id].into(),
            identity,
            is_embedded: true,
            place: config.store_dir().display().to_string(),
        });
    }
    let mut opened = OpenedStores::default();
    opened.open(config, cluster, &Handle::current()).await?;
    let rows = opened.rows()?;
    let of_rows = config.rows_store().map(|store| store.place());
    let of_database = config.postgres_options().map(|options| options.place());
    let mut state_stores = BTreeSet::new();
    let state: Arc<dyn EntityStore> = match (own, &opened.database) {
        (Some(own), _) => own,
        (None, Some(first)) if opened.further.is_empty() => first.clone(),
        (None, Some(first)) => {
            let further = opened.further.iter().map(|it| EntityStore::identity(&**it).store_id);
            state_stores.extend(further);
            Arc::new(ranges::combine(first, &opened.further, &*rows).await?)
        }
        (None, None) => return Err(NodeError::UnexpectedExit("no store has the state".into())),
    };
    let of_state = match &opened.database {
        Some(first) => EntityStore::identity(&**first).store_id,
        None => state.identity().store_id,
    };
    state_stores.insert(of_state);
    Ok(StoppedStores {
        identity: rows.identity(),
        place: of_rows.or(of_database).unwrap_or_default(),
        rows,
        state,
        state_stores,
        is_embedded: false,
    })
}
