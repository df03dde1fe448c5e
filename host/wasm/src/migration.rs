//! The export `migration`: the schemas that a component handles, and the turn that migrates an entity (R24).

use bytes::Bytes;
use ostraca_codes::codes;
use wasmtime::component::{Instance as ComponentInstance, TypedFunc};
use wasmtime::{Result, Store};

use crate::host_trap::{Stage, guest};
use crate::instance::Instance;
use crate::instance_data::{InstanceData, Phase};
use crate::world::MigrationExports;
use crate::{Error, GuestTurnOutput, TurnResult};

/// What a component says about the schema of its state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchemaSupport {
    /// The schema that it reads and writes; 0 without the export `migration`.
    pub version: u32,
    /// The highest schema from which it migrates; at least `version`.
    pub newest: u32,
}

/// A function that returns a schema.
pub(crate) type SchemaFunc = TypedFunc<(), (u32,)>;
/// The type of the export `migrate`.
type MigrateFunc = TypedFunc<(u32,), (std::result::Result<(), String>,)>;

/// Looks up the functions that return the schemas, and checks the type of `migrate`.
pub(crate) fn schema_functions(
    store: &mut Store<InstanceData>,
    instance: &ComponentInstance,
    exports: &MigrationExports,
) -> Result<(SchemaFunc, SchemaFunc)> {
    let _: MigrateFunc = instance.get_typed_func(&mut *store, exports.migrate)?;
    let version = instance.get_typed_func(&mut *store, exports.schema_version)?;
    let newest = instance.get_typed_func(&mut *store, exports.newest_schema)?;
    Ok((version, newest))
}

/// Checks what a component says about its schemas.
pub(crate) fn check(version: u32, newest: u32) -> std::result::Result<SchemaSupport, Error> {
    if newest < version {
        return Err(Error::InvalidSchemas(format!(
            "newest-schema is {newest}, below schema-version, which is {version}"
        )));
    }
    Ok(SchemaSupport { version, newest })
}

impl Instance {
    /// Migrates the entity's state as one turn, within `limits.turn-time`. Used instead of [`Instance::start`]: the
    /// instance must be dropped afterwards.
    pub async fn migrate(&mut self, from_schema: u32) -> GuestTurnOutput {
        self.begin(Stage::Migrate, Phase::Hook);
        let Some(migrate) = self.migrate else {
            let text = "the component does not export `migration`";
            let result = self.fail_and_log(guest(codes::MIGRATION_REFUSED, text.into()));
            return self.finish(result);
        };
        let called = self
            .call::<_, (std::result::Result<(), String>,)>(Stage::Migrate, migrate, (from_schema,))
            .await;
        let result = match called {
            Ok((Ok(()),)) => TurnResult::Ok(Bytes::new()),
            Ok((Err(why),)) => self.fail_and_log(guest(
                codes::MIGRATION_REFUSED,
                format!("migrate refused schema {from_schema}: {why}"),
            )),
            Err(failure) => self.fail(failure),
        };
        self.finish(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_schema_is_at_least_the_components() {
        assert_eq!(check(2, 2).unwrap(), SchemaSupport { version: 2, newest: 2 });
        assert_eq!(check(2, 5).unwrap(), SchemaSupport { version: 2, newest: 5 });
        let refused = check(2, 1).unwrap_err();
        assert_eq!(refused.code(), codes::INVALID_SCHEMAS);
        assert!(refused.to_string().contains("newest-schema is 1"), "{refused}");
    }
}
