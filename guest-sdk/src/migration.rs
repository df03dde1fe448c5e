//! What a function marked `#[migrate]` may return, and how it migrates a struct.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::entity::{StateModel, WHOLE_STATE_KEY, WholeState};
use crate::error::ApplicationError;
use crate::state;

/// A type that a function marked `#[migrate]` may return for the value `T`.
pub trait IntoMigrated<T> {
    /// Returns the value, or why there is none.
    fn into_migrated(self) -> Result<T, String>;
}

impl<T> IntoMigrated<T> for T {
    fn into_migrated(self) -> Result<T, String> {
        Ok(self)
    }
}

impl<T, E: ApplicationError> IntoMigrated<T> for Result<T, E> {
    fn into_migrated(self) -> Result<T, String> {
        self.map_err(|error| format!("{}: {}", error.code(), error.message()))
    }
}

/// Replaces a stored struct by what `migrate` makes of its JSON. An entity that has stored none has nothing to migrate.
pub fn migrate_struct<E: Serialize + DeserializeOwned + Default>(
    from: u32,
    migrate: impl FnOnce(u32, Value) -> Result<E, String>,
) -> Result<(), String> {
    let Some(stored) = state::get_raw(WHOLE_STATE_KEY) else { return Ok(()) };
    let old = state::from_json(&stored);
    let old = old.map_err(|error| format!("the stored state is not JSON: {error}"))?;
    let entity = migrate(from, old)?;
    WholeState::save(&entity, &mut Some(stored));
    Ok(())
}
