//! What may go wrong outside a turn. What goes wrong inside one is a [`crate::Failure`].

use std::path::PathBuf;

/// Why the host, a program or an instance could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting does not fit this machine or another setting.
    #[error("use the setting {setting}: {reason}")]
    Setting {
        /// Its name in [`crate::Settings`].
        setting: &'static str,
        /// What does not fit, and what would.
        reason: String,
    },
    /// The engine could not be made.
    #[error("make the engine: {0}")]
    EngineFailed(String),
    /// The cache directory cannot be used.
    #[error("use the cache directory {path}: {source}")]
    Cache {
        /// The directory or a file in it.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are not WebAssembly.
    #[error("read the component: these {bytes} bytes are not WebAssembly")]
    NotWasm {
        /// How many there were.
        bytes: usize,
    },
    /// A core module where a component is needed.
    #[error("read the component: this is a core module; `ostraca build` makes a component of it")]
    CoreModule,
    /// WebAssembly that does not validate or compile.
    #[error("compile the component: {0}")]
    InvalidComponent(String),
    /// Beyond [`crate::Settings::component_limit`].
    #[error("read the component: {bytes} bytes are more than component_limit, {limit} bytes")]
    TooLarge {
        /// The component's size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Beyond one of [`crate::ComponentLimits`], or of the deployment's [`crate::Limits`], before anything was compiled.
    #[error("use the component as an entity: one instance makes {found} {}, and {} allows {limit}", part.name(), part.setting())]
    ComponentLimit {
        /// What there is too much of.
        part: ComponentResource,
        /// How much there is, the nested counted each time that they are instantiated.
        found: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// Something is instantiated that is not nested in the component, so that its size is not known.
    #[error(
        "use the component as an entity: it instantiates a {what} that is imported or another instance's export"
    )]
    UnsizedInstantiation {
        /// A core module or a component.
        what: &'static str,
    },
    /// The compiler's process could not be started, or did not understand what it was told.
    #[error("run the compiler: {0}")]
    CompilerUnavailable(String),
    /// The compiler's process ended without a word, as by a signal.
    #[error("compile the component: the compiler ended with {how}")]
    CompilerCrashed {
        /// Its exit code or signal, and the last that it wrote.
        how: String,
    },
    /// The compiler took too long.
    #[error("compile the component: it takes longer than timeout in [compiler], {limit:?}")]
    CompileTime {
        /// The limit.
        limit: std::time::Duration,
    },
    /// The compiler needed too much memory.
    #[error("compile the component: it takes more than max-memory in [compiler], {limit} bytes")]
    CompileMemory {
        /// The limit.
        limit: u64,
    },
    /// An export of the world is missing.
    #[error("use the component as an entity: it does not export {export}")]
    MissingExport {
        /// The interface, with its version.
        export: String,
    },
    /// An import that nothing grants.
    #[error("use the component as an entity: it imports {import}, which is not granted")]
    ImportNotGranted {
        /// The import's name.
        import: String,
    },
    /// A function of the right name and another type.
    #[error("use the component as an entity: {0}")]
    WrongSignature(String),
    /// `methods` failed or returned a list that cannot be used.
    #[error("read the component's methods: {0}")]
    InvalidMethods(String),
    /// As many instances live as may: evict one and try again.
    #[error("start an instance: {limit} are live, and max_live allows no more")]
    InstanceLimit {
        /// The limit that was met.
        limit: u32,
    },
    /// The guest failed while its instance was made.
    #[error("start an instance: {0}")]
    Activation(crate::Failure),
    /// A core module that cannot be made a component.
    #[error("make a component of the core module: {0}")]
    EncodeFailed(String),
    /// A thread could not be started, or ended without an answer.
    #[error("run the compiler's thread: {0}")]
    ThreadFailed(String),
}

/// A part of which a component may make only so many.
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
    /// All else that a component lists.
    Definitions,
    /// Bytes that memories have at the start.
    Memory,
    /// Elements that tables have at the start.
    TableElements,
}

impl ComponentResource {
    fn code(self) -> &'static str {
        match self {
            ComponentResource::CoreInstances => "too-many-core-instances",
            ComponentResource::ComponentInstances => "too-many-component-instances",
            ComponentResource::Memories => "too-many-memories",
            ComponentResource::Tables => "too-many-tables",
            ComponentResource::Functions => "too-many-functions",
            ComponentResource::Types => "too-many-types",
            ComponentResource::Definitions => "too-many-definitions",
            ComponentResource::Memory => "memory-limit",
            ComponentResource::TableElements => "table-limit",
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

    /// The setting of the node, or the limit in the manifest.
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
    pub fn code(&self) -> &'static str {
        match self {
            Error::Setting { .. } => "invalid-setting",
            Error::EngineFailed(_) => "engine-failed",
            Error::Cache { .. } => "component-cache",
            Error::NotWasm { .. } => "not-wasm",
            Error::CoreModule => "core-module",
            Error::InvalidComponent(_) => "invalid-component",
            Error::TooLarge { .. } => "component-too-large",
            Error::ComponentLimit { part, .. } => part.code(),
            Error::UnsizedInstantiation { .. } => "unsized-instantiation",
            Error::CompilerUnavailable(_) => "compiler-unavailable",
            Error::CompilerCrashed { .. } => "compiler-crashed",
            Error::CompileTime { .. } => "compile-time-limit",
            Error::CompileMemory { .. } => "compile-memory-limit",
            Error::MissingExport { .. } => "missing-export",
            Error::ImportNotGranted { .. } => "import-not-granted",
            Error::WrongSignature(_) => "wrong-signature",
            Error::InvalidMethods(_) => "invalid-methods",
            Error::InstanceLimit { .. } => "instance-limit",
            Error::Activation(failure) => failure.code,
            Error::EncodeFailed(_) => "encode-failed",
            Error::ThreadFailed(_) => "thread-failed",
        }
    }

    /// Whether it is about the compiler's process, which may have met this machine's load rather than the component.
    pub fn is_compiler_failure(&self) -> bool {
        matches!(
            self,
            Error::CompilerUnavailable(_)
                | Error::CompilerCrashed { .. }
                | Error::CompileTime { .. }
                | Error::CompileMemory { .. }
        )
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::InstanceLimit { .. } | Error::ThreadFailed(_) => true,
            Error::Activation(failure) => failure.is_retryable(),
            _ => false,
        }
    }
}

/// Why an entity's state could not be loaded.
#[derive(Debug, Clone, thiserror::Error)]
#[error("load the entity's state: {0}")]
pub struct StateError(pub String);
