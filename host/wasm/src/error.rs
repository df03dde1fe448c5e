//! What may go wrong outside a turn. What goes wrong inside one is a [`crate::Failure`].

use std::path::PathBuf;

/// Why the host, a program or an instance could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting does not fit this machine or another setting.
    #[error("use the setting {setting}: {why}")]
    Setting {
        /// Its name in [`crate::Settings`].
        setting: &'static str,
        /// What does not fit, and what would.
        why: String,
    },
    /// The engine could not be made.
    #[error("make the engine: {0}")]
    Engine(String),
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
    Invalid(String),
    /// Beyond [`crate::Settings::component_limit`].
    #[error("read the component: {bytes} bytes are more than component_limit, {limit} bytes")]
    TooLarge {
        /// The component's size.
        bytes: u64,
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
    BadMethods(String),
    /// As many instances live as may: evict one and try again.
    #[error("start an instance: {limit} are live, and max_live allows no more")]
    NoRoom {
        /// The limit that was met.
        limit: u32,
    },
    /// The guest failed while its instance was made.
    #[error("start an instance: {0}")]
    Activation(crate::Failure),
    /// A core module that cannot be made a component.
    #[error("make a component of the core module: {0}")]
    Encode(String),
    /// A thread could not be started, or ended without an answer.
    #[error("run the compiler's thread: {0}")]
    Thread(String),
}

impl Error {
    /// The stable code, for programs and for `docs/errors.md`.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Setting { .. } => "bad-setting",
            Error::Engine(_) => "engine",
            Error::Cache { .. } => "component-cache",
            Error::NotWasm { .. } => "not-wasm",
            Error::CoreModule => "core-module",
            Error::Invalid(_) => "invalid-component",
            Error::TooLarge { .. } => "component-too-large",
            Error::MissingExport { .. } => "missing-export",
            Error::ImportNotGranted { .. } => "import-not-granted",
            Error::WrongSignature(_) => "wrong-signature",
            Error::BadMethods(_) => "bad-methods",
            Error::NoRoom { .. } => "no-room",
            Error::Activation(failure) => failure.code,
            Error::Encode(_) => "cannot-encode",
            Error::Thread(_) => "thread",
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn retryable(&self) -> bool {
        match self {
            Error::NoRoom { .. } | Error::Thread(_) => true,
            Error::Activation(failure) => failure.retryable(),
            _ => false,
        }
    }
}

/// Why an entity's state could not be loaded.
#[derive(Debug, Clone, thiserror::Error)]
#[error("load the entity's state: {0}")]
pub struct StateError(pub String);
