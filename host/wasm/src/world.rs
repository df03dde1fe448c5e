//! Decides whether a component is an entity. Its imports and exports are checked by name before it is compiled, and
//! by type afterwards.

use wasmtime::component::{Component, ComponentExportIndex};

use crate::survey::Survey;
use crate::text::sanitized;
use crate::{Error, wasi};

const PACKAGE: &str = "ostraca:entity/";
/// Interfaces of the package that a guest may import.
const IMPORTS: [&str; 18] = [
    "types",
    "context",
    "state",
    "lifecycle",
    "log",
    "clock",
    "random",
    "timers",
    "messaging",
    "asks",
    "journal",
    "passivation",
    "remembering",
    "channels",
    "subscriptions",
    "deletion",
    "secrets",
    "settings",
];

/// Maximum size in bytes of what `methods` returns, measured as it is held in the host's memory.
pub(crate) const METHODS_BYTES: usize = 4 << 20;

/// Indices of the exported functions.
pub(crate) struct Exports {
    pub(crate) methods: ComponentExportIndex,
    pub(crate) start: ComponentExportIndex,
    pub(crate) message: ComponentExportIndex,
    pub(crate) stop: Option<ComponentExportIndex>,
    pub(crate) timer: Option<ComponentExportIndex>,
    pub(crate) migration: Option<MigrationExports>,
    pub(crate) schemas: Option<ComponentExportIndex>,
    /// Whether the component imports any WASI interface.
    pub(crate) wasi: bool,
}

/// The functions of the export `migration`.
pub(crate) struct MigrationExports {
    pub(crate) schema_version: ComponentExportIndex,
    pub(crate) newest_schema: ComponentExportIndex,
    pub(crate) migrate: ComponentExportIndex,
}

/// Whether `name` is `interface` in a version that this host supports: every 0.1.x.
fn is_version_of(name: &str, interface: &str) -> bool {
    name.strip_prefix(PACKAGE)
        .and_then(|rest| rest.strip_prefix(interface))
        .is_some_and(|rest| rest.starts_with("@0.1."))
}

/// Checks only names, before anything is compiled. Returns whether the component imports WASI.
pub(crate) fn check_names(survey: &Survey<'_>) -> Result<bool, Error> {
    let mut uses_wasi = false;
    for name in &survey.imports {
        if wasi::is_linked(name) {
            uses_wasi = true;
        } else if !IMPORTS.iter().any(|interface| is_version_of(name, interface)) {
            return Err(Error::ImportNotGranted { import: sanitized((*name).to_owned()) });
        }
    }
    for interface in ["methods", "handler"] {
        if !survey.exports.iter().any(|name| is_version_of(name, interface)) {
            return Err(missing(&format!("{interface}@0.1.0")));
        }
    }
    Ok(uses_wasi)
}

fn missing(name: &str) -> Error {
    Error::MissingExport { export: format!("{PACKAGE}{name}") }
}

/// Looks up the exported functions.
pub(crate) fn exports(component: &Component, wasi: bool) -> Result<Exports, Error> {
    let engine = component.engine();
    let ty = component.component_type();
    let interface = |interface: &str| {
        let name =
            ty.exports(engine).map(|(name, _)| name).find(|name| is_version_of(name, interface))?;
        component.get_export_index(None, name)
    };
    let function = |of: &ComponentExportIndex, interface: &str, name: &str| {
        component
            .get_export_index(Some(of), name)
            .ok_or_else(|| missing(&format!("{interface}@0.1.0 with the function {name}")))
    };
    let methods = interface("methods").ok_or_else(|| missing("methods@0.1.0"))?;
    let handler = interface("handler").ok_or_else(|| missing("handler@0.1.0"))?;
    Ok(Exports {
        methods: function(&methods, "methods", "methods")?,
        start: function(&handler, "handler", "start")?,
        message: function(&handler, "handler", "message")?,
        stop: interface("stop").map(|stop| function(&stop, "stop", "stop")).transpose()?,
        timer: interface("timer-handler")
            .map(|handler| function(&handler, "timer-handler", "timer"))
            .transpose()?,
        migration: interface("migration")
            .map(|migration| {
                let of = |name| function(&migration, "migration", name);
                Ok(MigrationExports {
                    schema_version: of("schema-version")?,
                    newest_schema: of("newest-schema")?,
                    migrate: of("migrate")?,
                })
            })
            .transpose()?,
        schemas: interface("schemas")
            .map(|schemas| function(&schemas, "schemas", "schemas"))
            .transpose()?,
        wasi,
    })
}
