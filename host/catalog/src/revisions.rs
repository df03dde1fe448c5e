//! The earlier revisions of a type that its row keeps, and the schemas of their state (R24).
//!
//! An entity that cannot be migrated runs the last earlier revision with its own schema, so the row keeps that revision
//! for each schema. It also keeps the most recent ones, for `ostraca deployments`. An earlier revision runs under
//! the manifest of the current one: limits and grants are the operator's decision of today.

use ostraca_core::codec::CodecError;
use ostraca_core::shard::SchemaSupport;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::rows::TypeRow;

/// Maximum number of earlier revisions that a type's row keeps. About 80 bytes each.
pub const MAX_EARLIER: usize = 16;

/// Maximum number of inactive revisions that a type's row keeps. Beyond it, the oldest goes.
pub const MAX_INACTIVE: usize = 4;

/// An earlier revision of a type, or one that was never active.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierEntry {
    /// The revision.
    pub revision: u64,
    /// BLAKE3 of its component, under which the `EntityStore` keeps it.
    pub component_digest: [u8; 32],
    /// In bytes.
    pub component_size: u64,
    /// BLAKE3 of its manifest, under which the `EntityStore` keeps it.
    pub manifest_digest: [u8; 32],
    /// What its component says about its state.
    pub schema: SchemaSupport,
}

impl TypeRow {
    /// What the component says about the schema of its state.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn schema(&self) -> Result<SchemaSupport, CodecError> {
        let found = self.extensions.get::<(u32, u32)>(Self::SCHEMA)?;
        let (version, newest) = found.unwrap_or_default();
        Ok(SchemaSupport { version, newest })
    }

    /// Sets the schema.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_schema(&mut self, schema: SchemaSupport) -> Result<(), CodecError> {
        if schema == SchemaSupport::default() {
            return self.extensions.take::<(u32, u32)>(Self::SCHEMA).map(drop);
        }
        self.extensions.set(Self::SCHEMA, &(schema.version, schema.newest))
    }

    /// The earlier revisions, in ascending order.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn earlier(&self) -> Result<Vec<EarlierEntry>, CodecError> {
        Ok(self.extensions.get(Self::EARLIER)?.unwrap_or_default())
    }

    /// Sets the earlier revisions.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for them.
    pub fn set_earlier(&mut self, earlier: &[EarlierEntry]) -> Result<(), CodecError> {
        if earlier.is_empty() {
            return self.extensions.take::<Vec<EarlierEntry>>(Self::EARLIER).map(drop);
        }
        self.extensions.set(Self::EARLIER, &earlier)
    }

    /// The revisions that are stored and were never active, in ascending order.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn inactive(&self) -> Result<Vec<EarlierEntry>, CodecError> {
        Ok(self.extensions.get(Self::INACTIVE)?.unwrap_or_default())
    }

    /// Sets the inactive revisions, of which the last [`MAX_INACTIVE`] are kept.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for them.
    pub fn set_inactive(&mut self, inactive: &[EarlierEntry]) -> Result<(), CodecError> {
        if inactive.is_empty() {
            return self.extensions.take::<Vec<EarlierEntry>>(Self::INACTIVE).map(drop);
        }
        let kept = &inactive[inactive.len().saturating_sub(MAX_INACTIVE)..];
        self.extensions.set(Self::INACTIVE, &kept)
    }

    /// The highest revision that was ever assigned.
    ///
    /// # Errors
    /// [`CodecError`] if a field is damaged.
    pub fn highest_revision(&self) -> Result<u64, CodecError> {
        let inactive = self.inactive()?;
        Ok(inactive.last().map_or(0, |last| last.revision).max(self.revision))
    }

    /// The earlier revisions that entities may have to run: the last one of each other schema, and the one that a
    /// rollout has not reached yet.
    ///
    /// # Errors
    /// [`CodecError`] if a field is damaged.
    pub fn runnable_earlier(&self) -> Result<Vec<EarlierEntry>, CodecError> {
        let current = self.schema()?.version;
        let all = self.earlier()?;
        let from = self.rollout()?.map(|rollout| rollout.from);
        let is_last = |at: usize| {
            if from == Some(all[at].revision) {
                return true;
            }
            let schema = all[at].schema.version;
            schema != current && all[at + 1..].iter().all(|later| later.schema.version != schema)
        };
        let kept = (0..all.len()).filter(|at| is_last(*at));
        Ok(kept.map(|at| all[at].clone()).collect())
    }
}

impl EarlierEntry {
    /// Whether the other one has the same component and manifest.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.component_digest, self.manifest_digest)
            == (other.component_digest, other.manifest_digest)
    }
}

/// The highest revision that was ever assigned, and the inactive revisions, of a type whose row this is.
///
/// # Errors
/// [`CodecError`] if a field is damaged.
pub fn of_row(row: Option<&TypeRow>) -> Result<(u64, Vec<EarlierEntry>), CodecError> {
    row.map_or(Ok((0, Vec::new())), |row| Ok((row.highest_revision()?, row.inactive()?)))
}

/// The earlier revisions to keep once `last` is no longer the current one and the current schema is `schema`. Beyond
/// [`MAX_EARLIER`], the oldest ones go that are not the last of another schema.
///
/// # Errors
/// [`Error::TooManySchemas`] if that many schemas are kept.
pub fn keep(
    mut earlier: Vec<EarlierEntry>,
    last: EarlierEntry,
    schema: u32,
) -> Result<Vec<EarlierEntry>, Error> {
    earlier.push(last);
    while earlier.len() > MAX_EARLIER {
        let is_needed = |at: usize| {
            let of = earlier[at].schema.version;
            of != schema && earlier[at + 1..].iter().all(|later| later.schema.version != of)
        };
        let Some(oldest) = (0..earlier.len()).find(|at| !is_needed(*at)) else {
            return Err(Error::TooManySchemas(MAX_EARLIER));
        };
        earlier.remove(oldest);
    }
    Ok(earlier)
}

#[cfg(test)]
mod tests {
    use ostraca_core::extensions::Extensions;

    use super::*;
    use crate::rollout::StoredRollout;

    fn entry(revision: u64, schema: u32) -> EarlierEntry {
        EarlierEntry {
            revision,
            component_digest: [1; 32],
            component_size: 2,
            manifest_digest: [3; 32],
            schema: SchemaSupport { version: schema, newest: schema },
        }
    }

    fn row() -> TypeRow {
        TypeRow {
            revision: 9,
            manifest: String::new(),
            component_digest: [0; 32],
            component_size: 1,
            methods: Vec::new(),
            extensions: Extensions::default(),
        }
    }

    fn revisions(of: &[EarlierEntry]) -> Vec<u64> {
        of.iter().map(|it| it.revision).collect()
    }

    #[test]
    fn the_bytes_of_schema_and_earlier_revisions_do_not_change() {
        let mut row = row();
        let before = ostraca_core::codec::encode(&row).unwrap();
        row.set_schema(SchemaSupport { version: 2, newest: 3 }).unwrap();
        row.set_earlier(&[entry(300, 1)]).unwrap();
        let bytes = ostraca_core::codec::encode(&row).unwrap();
        let mut golden = before[..before.len() - 1].to_vec();
        golden.extend([2, 2, 2, 2, 3, 4, 70, 1, 0xac, 2]);
        golden.extend([1; 32]);
        golden.push(2);
        golden.extend([3; 32]);
        golden.extend([1, 1]);
        assert_eq!(bytes, golden);
        let read: TypeRow = ostraca_core::codec::decode(&bytes).unwrap();
        assert_eq!(read.schema().unwrap(), SchemaSupport { version: 2, newest: 3 });
        assert_eq!(read.earlier().unwrap(), [entry(300, 1)]);
        row.set_schema(SchemaSupport::default()).unwrap();
        row.set_earlier(&[]).unwrap();
        assert_eq!(
            ostraca_core::codec::encode(&row).unwrap(),
            before,
            "nothing is stored without schemas"
        );
    }

    #[test]
    fn r24_the_last_revision_of_each_other_schema_may_run() {
        let mut row = row();
        row.set_schema(SchemaSupport { version: 2, newest: 2 }).unwrap();
        let all = [entry(1, 0), entry(2, 1), entry(3, 1), entry(4, 2), entry(5, 3), entry(6, 2)];
        row.set_earlier(&all).unwrap();
        assert_eq!(revisions(&row.runnable_earlier().unwrap()), [1, 3, 5]);
        row.set_earlier(&[]).unwrap();
        assert_eq!(row.runnable_earlier().unwrap(), []);
    }

    #[test]
    fn r24_the_revision_before_a_rollout_may_run() {
        let mut row = row();
        row.set_earlier(&[entry(7, 0), entry(8, 0)]).unwrap();
        assert_eq!(row.runnable_earlier().unwrap(), []);
        let rollout = StoredRollout {
            from: 8,
            shards: 3,
            per_mille: 300,
            rate: 4,
            since: 6,
            advanced_at: 5,
            stopped: "w".into(),
        };
        row.set_rollout(Some(&rollout)).unwrap();
        assert_eq!(row.rollout().unwrap(), Some(rollout));
        assert_eq!(revisions(&row.runnable_earlier().unwrap()), [8]);
        row.set_earlier(&[]).unwrap();
        let bytes = ostraca_core::codec::encode(&row).unwrap();
        assert_eq!(bytes[bytes.len() - 12..], [1, 8, 9, 8, 3, 0xac, 2, 4, 6, 5, 1, b'w']);
        row.set_rollout(None).unwrap();
        assert!(row.extensions.is_empty());
    }

    #[test]
    fn r24_inactive_revisions_are_bounded_and_numbers_only_rise() {
        let mut row = row();
        assert_eq!(row.highest_revision().unwrap(), 9);
        let many: Vec<_> = (10..20).map(|revision| entry(revision, 0)).collect();
        row.set_inactive(&many).unwrap();
        assert_eq!(revisions(&row.inactive().unwrap()), [16, 17, 18, 19]);
        assert_eq!(row.highest_revision().unwrap(), 19);
        row.set_inactive(&[]).unwrap();
        assert!(row.extensions.is_empty());
    }

    #[test]
    fn r24_a_revision_that_may_have_to_run_is_kept() {
        let mut kept = keep(Vec::new(), entry(1, 0), 1).unwrap();
        for revision in 2..100 {
            kept = keep(kept, entry(revision, 1), 1).unwrap();
        }
        assert_eq!(kept.len(), MAX_EARLIER);
        assert_eq!((kept[0].revision, kept[1].revision), (1, 85));
        let many = (1..=MAX_EARLIER as u64).map(|it| entry(it, it as u32)).collect();
        let refused = keep(many, entry(17, 17), 18).unwrap_err();
        assert!(matches!(refused, Error::TooManySchemas(MAX_EARLIER)));
    }
}
