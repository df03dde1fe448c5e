//! The export `migration`: the schemas that a component handles (R24).

use wasmtime::component::{Instance, TypedFunc};
use wasmtime::{Result, Store};

use crate::Error;
use crate::instance_data::InstanceData;
use crate::world::MigrationExports;

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
type MigrateFunc = TypedFunc<(u32,), (MigrationResult,)>;
/// The result of the export `migrate`.
pub(crate) type MigrationResult = std::result::Result<(), String>;

/// Looks up the functions that return the schemas, and checks the type of `migrate`.
pub(crate) fn schema_functions(
    store: &mut Store<InstanceData>,
    instance: &Instance,
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
        return Err(Error::InvalidSchemaVersion(format!(
            "newest-schema is {newest}, below schema-version, which is {version}"
        )));
    }
    Ok(SchemaSupport { version, newest })
}

#[cfg(test)]
mod tests {
    use ostraca_codes::codes;

    use super::*;

    #[test]
    fn the_newest_schema_is_at_least_the_components() {
        assert_eq!(check(2, 2).unwrap(), SchemaSupport { version: 2, newest: 2 });
        assert_eq!(check(2, 5).unwrap(), SchemaSupport { version: 2, newest: 5 });
        let refused = check(2, 1).unwrap_err();
        assert_eq!(refused.code(), codes::INVALID_SCHEMA_VERSION);
        assert!(refused.to_string().contains("newest-schema is 1"), "{refused}");
    }
}
