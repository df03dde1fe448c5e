//! The route cache's sled database. sled's panics on damaged files become errors here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use ostraca_catalog::pool::PoolsRow;
use ostraca_catalog::rows::{self, POOLS, PoolRow};
use ostraca_core::ids::ClusterId;
use ostraca_store::StoredRow;
use ostraca_store_sled::{DatabaseOpenError, open_database};

use super::CachedCluster;

/// Version of the cache's layout, to be raised when the layout changes; rows have their own versions.
const VERSION: u8 = 1;
/// Key of the entry that holds the layout version and the cluster id.
const ABOUT: &str = "about";
/// Key of the entry that says when the policy and the revocations were last known to be in force.
pub(super) const ACCESS_READ: &str = "access-read";
/// Size of sled's page cache in bytes.
const PAGES: u64 = 4 << 20;

/// Why the database is unavailable.
pub(super) enum OpenError {
    /// Another process has it open, so it must not be touched.
    InUse(String),
    /// It is damaged, or belongs to another cluster or layout version.
    Unusable(String),
}

impl From<String> for OpenError {
    fn from(why: String) -> Self {
        Self::Unusable(why)
    }
}

#[derive(Clone)]
pub(super) struct Database(sled::Db);

impl Database {
    pub(super) fn open(dir: &Path, cluster: ClusterId) -> Result<Self, OpenError> {
        let config = sled::Config::new().path(dir).cache_capacity(PAGES);
        let database = Self(open_database(&config).map_err(|error| match error {
            DatabaseOpenError::InUse(error) => OpenError::InUse(error.to_string()),
            error => OpenError::Unusable(error.to_string()),
        })?);
        let about = [&[VERSION][..], &cluster.0.to_be_bytes()].concat();
        match guarded(|| database.0.get(ABOUT))? {
            Some(found) if *found == *about => Ok(database),
            Some(_) => Err("it belongs to another cluster or another release".to_owned().into()),
            None if database.keys()?.is_empty() => {
                guarded(|| database.0.insert(ABOUT, about.clone()))?;
                Ok(database)
            }
            None => Err("it does not name its cluster".to_owned().into()),
        }
    }

    pub(super) fn keys(&self) -> Result<Vec<String>, String> {
        let keys = guarded(|| self.0.iter().keys().collect::<Result<Vec<_>, _>>())?;
        let keys = keys.iter().map(|key| String::from_utf8_lossy(key).into_owned());
        Ok(keys.filter(|key| key != ABOUT).collect())
    }

    pub(super) fn apply(&self, batch: sled::Batch) -> Result<(), String> {
        guarded(|| self.0.apply_batch(batch))?;
        guarded(|| self.0.flush()).map(drop)
    }

    pub(super) fn load(&self) -> Result<CachedCluster, String> {
        let found = guarded(|| self.0.iter().collect::<Result<Vec<_>, _>>())?;
        let mut cached = CachedCluster::default();
        let (mut first, mut others) = (None, PoolsRow::default());
        for (key, value) in found {
            let key = String::from_utf8_lossy(&key).into_owned();
            let row = StoredRow { key, revision: 0, value: Bytes::copy_from_slice(&value) };
            if row.key == ABOUT {
                continue;
            }
            if rows::type_name(&row.key).is_some() {
                cached.types.push(row);
            } else if rows::is_about_access(&row.key) {
                cached.access.push(row);
            } else if row.key == ACCESS_READ {
                let bytes = row.value.as_ref().try_into().map_err(|_| "a time is damaged")?;
                cached.access_read_ms = u64::from_be_bytes(bytes);
            } else if row.key == rows::pool_key() {
                first = Some(rows::decode::<PoolRow>(&row).map_err(|error| error.to_string())?);
            } else if row.key == POOLS {
                others = rows::decode(&row).map_err(|error| error.to_string())?;
            } else if let Some(row) = rows::decode_row(&row).map_err(|error| error.to_string())? {
                cached.rows.push(row);
            }
        }
        if let Some(first) = first {
            let pools = first.pools().and_then(|first| others.add_to(&first));
            cached.pools = Some(pools.map_err(|error| error.to_string())?);
        }
        Ok(cached)
    }
}

fn guarded<T>(work: impl FnOnce() -> sled::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("sled cannot read it".into()),
    }
}
