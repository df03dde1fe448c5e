//! The runtime: engines, linkers, the ticker thread, and every component compiled once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use wasmtime::component::Component;

use crate::cache::Cache;
use crate::cancel::{CancelToken, cancelled};
use crate::compiler::Compiler;
use crate::digest::ComponentDigest;
use crate::engine::{self, EngineContext, RuntimeStatus};
use crate::http_client::OutgoingHttp;
use crate::program::{CompiledComponent, Program};
use crate::shared::Shared;
use crate::survey::survey;
use crate::ticker::Ticker;
use crate::{
    Error, InstanceLimits, MethodSchema, RuntimeSettings, VariablesRegistry, encode, world,
};

/// Compiles components and starts instances. Clones share everything; the ticker thread ends when the last clone,
/// program and instance are dropped.
#[derive(Clone)]
pub struct WasmRuntime(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    settings: RuntimeSettings,
    shape: RuntimeStatus,
    main: EngineContext,
    large: OnceLock<EngineContext>,
    /// Locked while the second engine is being created.
    making_large: Mutex<()>,
    cache: Option<Cache>,
    compiled: Mutex<HashMap<(ComponentDigest, bool), Weak<CompiledComponent>>>,
    compiler: Compiler,
}

impl WasmRuntime {
    /// Creates the engine and its pool, and starts the ticker thread. Takes about 20 ms for a pool of 8,000
    /// instances.
    pub fn new(settings: &RuntimeSettings) -> Result<WasmRuntime, Error> {
        let cache = settings
            .cache_dir
            .as_deref()
            .map(|dir| Cache::open(dir, settings.compile_cache_limit))
            .transpose()?;
        let (main, shape) = engine::main_engine(settings)?;
        let ticker = Ticker::start(settings.tick_interval)?;
        ticker.add(&main.engine);
        let http = OutgoingHttp::new(&settings.outgoing_http)?;
        let max_live = shape.max_live_instances;
        let shared = Shared::new(ticker, settings.tick_interval, max_live, http);
        Ok(WasmRuntime(Arc::new(Inner {
            shared: Arc::new(shared),
            settings: settings.clone(),
            shape,
            main,
            large: OnceLock::new(),
            cache,
            making_large: Mutex::default(),
            compiled: Mutex::default(),
            compiler: Compiler::new(&settings.compiler),
        })))
    }

    /// Checks a component, compiles it in the compiler process unless the compiled code is cached, and reads its
    /// methods. Works on a separate thread, and stops early if this future is dropped.
    pub async fn prepare(
        &self,
        component: Vec<u8>,
        limits: InstanceLimits,
    ) -> Result<Arc<Program>, Error> {
        let host = self.clone();
        on_thread(move |cancel| host.0.prepare(&component, limits, cancel)).await
    }

    /// Reads the JSON Schemas of a component's methods, and checks their size and form. Returns none if the component
    /// does not export any. Works on a separate thread, and stops early if this future is dropped.
    pub async fn schemas(&self, program: &Arc<Program>) -> Result<Vec<MethodSchema>, Error> {
        if program.compiled.exports.schemas.is_none() {
            return Ok(Vec::new());
        }
        let (program, max_bytes) = (program.clone(), self.0.settings.component.schema_bytes);
        on_thread(move |cancel| {
            let Program { compiled, shared, limits } = &*program;
            let reading = compiled.read_schemas(shared, limits, max_bytes);
            cancel.block_on(reading).ok_or_else(cancelled)?
        })
        .await
    }

    /// Like [`prepare`](Self::prepare), but blocks the caller's thread, which must not serve anything else.
    pub fn prepare_blocking(
        &self,
        component: &[u8],
        limits: InstanceLimits,
    ) -> Result<Arc<Program>, Error> {
        self.0.prepare(component, limits, &CancelToken::default())
    }

    /// The secrets and settings that guests read.
    #[must_use]
    pub fn variables(&self) -> &VariablesRegistry {
        &self.0.shared.variables
    }

    /// What the runtime chose at start, and how many instances are live now.
    pub fn status(&self) -> RuntimeStatus {
        let live = self.0.shared.live();
        RuntimeStatus {
            live_instances: live,
            large: self.0.large.get().is_some(),
            ..self.0.shape.clone()
        }
    }
}

/// Does `work` on a thread of its own. Cancels it if the future is dropped.
async fn on_thread<T: Send + 'static>(
    work: impl FnOnce(&CancelToken) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (answer, answered) = tokio::sync::oneshot::channel();
    let cancel = CancelToken::default();
    let _guard = cancel.on_drop();
    std::thread::Builder::new()
        .name("ostraca-compile".into())
        .spawn(move || {
            // A failed send means that the caller no longer waits.
            let _ = answer.send(work(&cancel));
        })
        .map_err(|error| Error::ThreadFailed(error.to_string()))?;
    answered.await.map_err(|_| Error::ThreadFailed("it ended without a result".into()))?
}

impl Inner {
    fn prepare(
        &self,
        component: &[u8],
        limits: InstanceLimits,
        cancel: &CancelToken,
    ) -> Result<Arc<Program>, Error> {
        let bytes = component.len() as u64;
        if bytes > self.settings.component_limit {
            return Err(Error::TooLarge { bytes, limit: self.settings.component_limit });
        }
        encode::check(component)?;
        let survey = survey(component, self.settings.component.definitions)?;
        let wasi = world::check_names(&survey)?;
        survey.counts.check(&self.settings.component, &limits)?;
        // The counts decide: a component that does not fit into the pool is compiled for the second engine.
        let large = !self.shape.pool_fits(&survey.counts, &limits);
        let digest = ComponentDigest::of(component);
        let limits = Arc::new(limits);
        let compiled = match self.cached(digest, large) {
            Some(compiled) => compiled,
            None => {
                let context = if large { self.large()? } else { &self.main };
                let native = self.component(context, component, digest, cancel)?;
                let exports = world::exports(&native, wasi)?;
                let compiled = CompiledComponent::new(
                    &self.shared,
                    context,
                    &native,
                    exports,
                    digest,
                    &limits,
                    cancel,
                )?;
                self.remember(digest, large, Arc::new(compiled))
            }
        };
        Ok(Arc::new(Program::new(self.shared.clone(), compiled, limits)))
    }

    fn cached(&self, digest: ComponentDigest, large: bool) -> Option<Arc<CompiledComponent>> {
        self.compiled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(digest, large))?
            .upgrade()
    }

    /// Keeps a compiled component. If another thread was faster, returns that thread's.
    fn remember(
        &self,
        digest: ComponentDigest,
        large: bool,
        compiled: Arc<CompiledComponent>,
    ) -> Arc<CompiledComponent> {
        let mut all = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, compiled| compiled.strong_count() > 0);
        if let Some(known) = all.get(&(digest, large)).and_then(Weak::upgrade) {
            return known;
        }
        all.insert((digest, large), Arc::downgrade(&compiled));
        compiled
    }

    fn component(
        &self,
        context: &EngineContext,
        bytes: &[u8],
        digest: ComponentDigest,
        cancel: &CancelToken,
    ) -> Result<Component, Error> {
        let EngineContext { engine, code, .. } = context;
        let kept = || self.cache.as_ref().and_then(|cache| cache.load(engine, &digest));
        if let Some(component) = kept() {
            return Ok(component);
        }
        let dir = self.settings.cache_dir.as_deref();
        let native = self.compiler.compile(engine, code, bytes, dir, cancel)?;
        if let Some(cache) = &self.cache {
            cache.store(engine, &digest, &native);
            // Prefer a mapping of the file to a copy in memory.
            if let Some(component) = kept() {
                return Ok(component);
            }
        }
        // SAFETY: this node's own compiler has just produced these bytes: with this engine, in this process, or in a
        // file that only the two processes have open, for an engine that it verified to be compatible with this one.
        #[allow(unsafe_code, reason = "wasmtime can take compiled code in no other way")]
        let loaded = unsafe { Component::deserialize(engine, &native) };
        loaded.map_err(|error| {
            Error::CompilerUnavailable(format!("cannot load the compiled code: {error:#}"))
        })
    }

    /// The second engine, which is created on first use.
    fn large(&self) -> Result<&EngineContext, Error> {
        let _making = self.making_large.lock().unwrap_or_else(PoisonError::into_inner);
        if self.large.get().is_none() {
            let context = engine::large_engine(&self.shape, &self.settings)?;
            self.shared.ticker.add(&context.engine);
            return Ok(self.large.get_or_init(|| context));
        }
        self.large.get().ok_or_else(|| Error::EngineFailed("the second engine disappeared".into()))
    }
}
