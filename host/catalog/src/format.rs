//! Raises the cluster's format: the version in which records and rows may be written (`docs/formats.md`).

use ostraca_core::rows::{NodeStatus, Row, RowKey};
use ostraca_store::ClusterStore;

use crate::error::Error;
use crate::rows::{self, ClusterRow};

/// Raises the format to `to` if every live node can read it. A node that starts after the first step reads the
/// cluster's row after its own row has been written. So either this function sees the node, or the node sees the
/// target format. The call may be repeated at any point.
///
/// # Errors
/// [`Error::FormatNotSupported`] names the nodes that cannot read it, and the format is unchanged;
/// [`Error::RowConflict`].
pub async fn raise(store: &dyn ClusterStore, to: u32) -> Result<(), Error> {
    let key = "cluster";
    let missing = || Error::InvalidRow(format!("the row `{key}` is missing"));
    let (row, revision) = rows::read::<ClusterRow>(store, key).await?.ok_or_else(missing)?;
    if row.format >= to {
        return Ok(());
    }
    let intent = ClusterRow { target_format: to, ..row.clone() };
    let revision = rows::write(store, key, Some(revision), &intent).await?;
    let (all, _) = store.list("nodes/").await?;
    let mut behind = Vec::new();
    for stored in &all {
        if let Some((RowKey::Node(name), Row::Node(node), _)) = rows::decode_row(stored)?
            && node.status == NodeStatus::Live
            && node.format < to
        {
            behind.push(format!("{name} ({})", node.format));
        }
    }
    if behind.is_empty() {
        rows::write(store, key, Some(revision), &ClusterRow { format: to, ..intent }).await?;
        return Ok(());
    }
    // Otherwise nodes of the older release could no longer start.
    rows::write(store, key, Some(revision), &ClusterRow { target_format: row.format, ..row })
        .await?;
    let text = format!("not every live node can read format {to}: {}", behind.join(", "));
    Err(Error::FormatNotSupported(text))
}

#[cfg(test)]
mod tests {
    use ostraca_config::config::ClusterSettings;
    use ostraca_core::format;
    use ostraca_core::ids::{ClusterId, Incarnation};
    use ostraca_core::rows::NodeRow;
    use ostraca_store::{CompareAndSet, MemoryStore};

    use super::*;
    use crate::bootstrap;

    /// The newest format.
    const FORMAT: u32 = format::RELEASE as u32;

    async fn node(store: &MemoryStore, name: &str, status: NodeStatus, format: u32) {
        let row = NodeRow::for_tests(Incarnation::default());
        let row = Row::Node(NodeRow { status, format, ..row });
        let key = rows::key_text(&RowKey::Node(name.into()));
        let expected = store.get(&key).await.expect("read").map(|row| row.revision);
        let value = Some(rows::encode_row(&row).expect("encodes"));
        store.compare_and_set(CompareAndSet { key, expected, value }).await.expect("written");
    }

    async fn formats(store: &MemoryStore) -> (u32, u32) {
        let (row, _) =
            rows::read::<ClusterRow>(store, "cluster").await.expect("read").expect("a row");
        (row.format, row.target_format)
    }

    #[tokio::test]
    async fn the_format_is_raised_only_when_every_live_node_reads_it() {
        let store = MemoryStore::new(1, ClusterId(1), "test");
        bootstrap::initialize_cluster(&store, 9, 8, &ClusterSettings::default())
            .await
            .expect("founded");
        let next = FORMAT + 1;
        node(&store, "n1", NodeStatus::Live, next).await;
        node(&store, "n2", NodeStatus::Live, FORMAT).await;
        node(&store, "n3", NodeStatus::Dead, FORMAT).await;
        let error = raise(&store, next).await.expect_err("n2 cannot read it").to_string();
        assert!(
            error.contains("n2 (3)") && !error.contains("n1") && !error.contains("n3"),
            "{error}"
        );
        assert_eq!(formats(&store).await, (FORMAT, FORMAT), "nothing was raised");
        node(&store, "n2", NodeStatus::Live, next).await;
        raise(&store, next).await.expect("every live node reads it");
        assert_eq!(formats(&store).await, (next, next));
        raise(&store, next).await.expect("raised");
        raise(&store, FORMAT).await.expect("a lower format changes nothing");
        assert_eq!(formats(&store).await, (next, next));
    }

    #[tokio::test]
    async fn an_interrupted_raise_keeps_older_nodes_out_and_resumes() {
        let store = MemoryStore::new(1, ClusterId(1), "test");
        bootstrap::initialize_cluster(&store, 9, 8, &ClusterSettings::default())
            .await
            .expect("founded");
        let (row, revision) =
            rows::read::<ClusterRow>(&store, "cluster").await.expect("read").expect("a row");
        let intent = ClusterRow { target_format: FORMAT + 1, ..row };
        rows::write(&store, "cluster", Some(revision), &intent).await.expect("written");
        let error = intent.readable().expect_err("this release does not start now").to_string();
        assert!(error.contains("format 4") && error.contains("3 to 3"), "{error}");
        raise(&store, FORMAT + 1).await.expect("every node can read it");
        assert_eq!(formats(&store).await, (FORMAT + 1, FORMAT + 1));
    }
}
