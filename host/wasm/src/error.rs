//! Errors outside of a turn. A failure inside of a turn is a [`crate::Failure`].

use std::path::PathBuf;

use ostraca_codes::{Code, Retry, codes};

/// Why the runtime, a program or an instance could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting does not fit this machine or another setting.
    #[error("invalid setting {setting}: {reason}")]
    Setting {
        /// Its key in `[guests]` of the node's configuration, or with the name of another section.
        setting: &'static str,
        /// What does not fit, and what would.
        reason: String,
    },
    /// The engine could not be created.
    #[error("cannot create the wasm engine: {0}")]
    EngineFailed(String),
    /// The cache directory cannot be used.
    #[error("cannot use the cache directory {path}: {source}")]
    Cache {
        /// The directory or a file in it.
        path: PathBuf,
        /// The underlying I/O error.
        source: std::io::Error,
    },
    /// The bytes are not WebAssembly.
    #[error("not a component: these {bytes} bytes are not WebAssembly")]
    NotWasm {
        /// How many bytes there were.
        bytes: usize,
    },
    /// A core module where a component is expected.
    #[error("not a component but a core module; `ostraca build` converts it into one")]
    CoreModule,
    /// WebAssembly that does not validate or compile.
    #[error("cannot compile the component: {0}")]
    InvalidComponent(String),
    /// The component is larger than [`crate::RuntimeSettings::component_limit`].
    #[error("component is {bytes} bytes, component-limit in [guests] is {limit}")]
    TooLarge {
        /// The component's size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The component exceeds one of [`crate::ComponentLimits`], or of the deployment's [`crate::InstanceLimits`].
    /// Detected before anything was compiled.
    #[error("component is too large: one instance creates {found} {}, but {} allows {limit}", part.name(), part.setting())]
    ComponentLimit {
        /// The resource that exceeds its limit.
        part: ComponentResource,
        /// The amount that one instance creates. A nested component counts each time it is instantiated.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The component instantiates something that is not nested in it, so its size is not known.
    #[error(
        "cannot use the component as an entity: it instantiates a {what} that is imported or exported by another instance"
    )]
    UnsizedInstantiation {
        /// `core module` or `component`.
        what: &'static str,
    },
    /// The compiler process could not be started, or failed for a reason other than the component.
    #[error("cannot run the compiler: {0}")]
    CompilerUnavailable(String),
    /// The compiler process died unexpectedly, for example from a signal.
    #[error("cannot compile the component: the compiler exited with {how}")]
    CompilerCrashed {
        /// Its exit code or signal, and the beginning of its standard error.
        how: String,
    },
    /// The compiler took too long.
    #[error("cannot compile the component: it takes longer than {limit:?} (timeout in [compiler])")]
    CompileTime {
        /// The limit.
        limit: std::time::Duration,
    },
    /// The compiler needed too much memory.
    #[error(
        "cannot compile the component: it needs more than {limit} bytes (max-memory in [compiler])"
    )]
    CompileMemory {
        /// The limit.
        limit: u64,
    },
    /// A required export is missing.
    #[error("cannot use the component as an entity: it does not export {export}")]
    MissingExport {
        /// The interface with its version, or the function that the interface lacks.
        export: String,
    },
    /// The component imports something that the host does not provide.
    #[error("cannot use the component as an entity: it imports {import}, which is not granted")]
    ImportNotGranted {
        /// The import's name.
        import: String,
    },
    /// A function has the right name and the wrong type.
    #[error("cannot use the component as an entity: {0}")]
    WrongSignature(String),
    /// `methods` failed, or returned an invalid list.
    #[error("cannot read the component's methods: {0}")]
    InvalidMethods(String),
    /// The schema numbers that its migration exports cannot be used, or the functions that return them failed.
    #[error("the schema numbers of the component are invalid: {0}")]
    InvalidSchemaVersion(String),
    /// `schemas` failed, or returned something that is no list of JSON Schemas.
    #[error("cannot read the schemas of the component's methods: {0}")]
    InvalidSchemas(String),
    /// The schemas exceed [`crate::ComponentLimits::schema_bytes`].
    #[error(
        "schemas of the component's methods are {bytes} bytes, schema-bytes in [components] is {limit}"
    )]
    SchemasTooLarge {
        /// Size of all schemas.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The maximum number of instances is live: evict one and try again.
    #[error(
        "cannot start an instance: {limit} instances are live, which is the limit (max-live-instances in [guests])"
    )]
    InstanceLimit {
        /// The limit that was reached.
        limit: u32,
    },
    /// The guest failed while its instance was being created.
    #[error("cannot start an instance: {0}")]
    Activation(crate::Failure),
    /// The core module cannot be converted into a component.
    #[error("cannot convert the core module into a component: {0}")]
    EncodeFailed(String),
    /// A thread could not be started, or ended without a result.
    #[error("compiler thread failed: {0}")]
    ThreadFailed(String),
}

/// A resource whose use by a component is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComponentResource {
    /// Instances of core modules.
    CoreInstances,
    /// Instances of nested components.
    ComponentInstances,
    /// Linear memories.
    Memories,
    /// Tables.
    Tables,
    /// Functions of core modules.
    Functions,
    /// Types.
    Types,
    /// Everything else that a component lists.
    Definitions,
    /// Initial size of all memories in bytes.
    Memory,
    /// Initial number of elements in all tables.
    TableElements,
}

impl ComponentResource {
    fn code(self) -> Code {
        match self {
            ComponentResource::CoreInstances => codes::TOO_MANY_CORE_INSTANCES,
            ComponentResource::ComponentInstances => codes::TOO_MANY_COMPONENT_INSTANCES,
            ComponentResource::Memories => codes::TOO_MANY_MEMORIES,
            ComponentResource::Tables => codes::TOO_MANY_TABLES,
            ComponentResource::Functions => codes::TOO_MANY_FUNCTIONS,
            ComponentResource::Types => codes::TOO_MANY_TYPES,
            ComponentResource::Definitions => codes::TOO_MANY_DEFINITIONS,
            ComponentResource::Memory => codes::MEMORY_LIMIT,
            ComponentResource::TableElements => codes::TABLE_LIMIT,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ComponentResource::CoreInstances => "core instances",
            ComponentResource::ComponentInstances => "component instances",
            ComponentResource::Memories => "memories",
            ComponentResource::Tables => "tables",
            ComponentResource::Functions => "functions",
            ComponentResource::Types => "types",
            ComponentResource::Definitions => "definitions",
            ComponentResource::Memory => "bytes of memory",
            ComponentResource::TableElements => "table elements",
        }
    }

    /// The node's setting, or the manifest's limit, that applies.
    fn setting(self) -> &'static str {
        match self {
            ComponentResource::CoreInstances => "core-instances in [components]",
            ComponentResource::ComponentInstances => "component-instances in [components]",
            ComponentResource::Memories => "memories in [components]",
            ComponentResource::Tables => "tables in [components]",
            ComponentResource::Functions => "functions in [components]",
            ComponentResource::Types => "types in [components]",
            ComponentResource::Definitions => "definitions in [components]",
            ComponentResource::Memory => "memory in the manifest's [limits]",
            ComponentResource::TableElements => "table-elements in the manifest's [limits]",
        }
    }
}

impl Error {
    /// The stable code, for programs and for `docs/errors.md`.
    pub fn code(&self) -> Code {
        match self {
            Error::Setting { .. } => codes::INVALID_SETTING,
            Error::EngineFailed(_) => codes::ENGINE_FAILED,
            Error::Cache { .. } => codes::COMPONENT_CACHE,
            Error::NotWasm { .. } => codes::NOT_WASM,
            Error::CoreModule => codes::CORE_MODULE,
            Error::InvalidComponent(_) => codes::INVALID_COMPONENT,
            Error::TooLarge { .. } => codes::COMPONENT_TOO_LARGE,
            Error::ComponentLimit { part, .. } => part.code(),
            Error::UnsizedInstantiation { .. } => codes::UNSIZED_INSTANTIATION,
            Error::CompilerUnavailable(_) => codes::COMPILER_UNAVAILABLE,
            Error::CompilerCrashed { .. } => codes::COMPILER_CRASHED,
            Error::CompileTime { .. } => codes::COMPILE_TIME_LIMIT,
            Error::CompileMemory { .. } => codes::COMPILE_MEMORY_LIMIT,
            Error::MissingExport { .. } => codes::MISSING_EXPORT,
            Error::ImportNotGranted { .. } => codes::IMPORT_NOT_GRANTED,
            Error::WrongSignature(_) => codes::WRONG_SIGNATURE,
            Error::InvalidMethods(_) => codes::INVALID_METHODS,
            Error::InvalidSchemas(_) => codes::INVALID_SCHEMAS,
            Error::InvalidSchemaVersion(_) => codes::INVALID_SCHEMA_VERSION,
            Error::SchemasTooLarge { .. } => codes::SCHEMAS_TOO_LARGE,
            Error::InstanceLimit { .. } => codes::INSTANCE_LIMIT,
            Error::Activation(failure) => failure.code,
            Error::EncodeFailed(_) => codes::ENCODE_FAILED,
            Error::ThreadFailed(_) => codes::THREAD_FAILED,
        }
    }

    /// Whether the compiler process failed, which may be due to the load of this machine and not to the component.
    pub fn is_compiler_failure(&self) -> bool {
        matches!(
            self,
            Error::CompilerUnavailable(_)
                | Error::CompilerCrashed { .. }
                | Error::CompileTime { .. }
                | Error::CompileMemory { .. }
        )
    }

    /// Whether the same call may succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        self.code().row().retry == Retry::Yes
    }
}
