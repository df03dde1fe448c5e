//! The host of guests: engines, linkers, the ticking thread, and every component compiled once.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use wasmtime::component::Component;

use crate::cache::Cache;
use crate::engine::{self, Room, Shape};
use crate::program::{Compiled, Program};
use crate::ticker::Ticker;
use crate::{Error, Limits, Settings, encode, world};

/// A component's content hash: blake3.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of a component.
    pub fn of(component: &[u8]) -> Digest {
        Digest(*blake3::hash(component).as_bytes())
    }

    /// Its 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Compiles components and starts instances. Clones share everything; the ticking thread ends with the last clone,
/// program and instance.
#[derive(Clone)]
pub struct Host(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) ticker: Ticker,
    settings: Settings,
    shape: Shape,
    main: Room,
    large: OnceLock<Room>,
    cache: Option<Cache>,
    compiled: Mutex<HashMap<(Digest, bool), Weak<Compiled>>>,
    /// Held while compiling: one at a time, since a compilation takes memory and uses all processors by itself.
    compiling: Mutex<()>,
    live: AtomicU32,
}

impl Host {
    /// Makes the engine and its pool, and starts the ticking thread. Takes about 20 ms for a pool of 8,000.
    pub fn new(settings: &Settings) -> Result<Host, Error> {
        let cache = settings
            .cache_dir
            .as_deref()
            .map(|dir| Cache::open(dir, settings.cache_limit))
            .transpose()?;
        let (main, shape) = engine::main(settings)?;
        let ticker = Ticker::start(settings.tick)?;
        ticker.add(&main.engine);
        Ok(Host(Arc::new(Inner {
            ticker,
            settings: settings.clone(),
            shape,
            main,
            large: OnceLock::new(),
            cache,
            compiled: Mutex::default(),
            compiling: Mutex::new(()),
            live: AtomicU32::new(0),
        })))
    }

    /// Checks a component against the world, compiles it unless that was done before, and reads its methods. The work is
    /// done on a thread of its own; components that are being compiled already are waited for.
    pub async fn prepare(&self, component: Vec<u8>, limits: Limits) -> Result<Arc<Program>, Error> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let host = self.clone();
        std::thread::Builder::new()
            .name("ostraca-compile".into())
            .spawn(move || {
                // Nobody to answer means that nobody waits any more.
                let _ = answer.send(host.prepare_blocking(&component, limits));
            })
            .map_err(|error| Error::Thread(error.to_string()))?;
        answered.await.map_err(|_| Error::Thread("it ended early".into()))?
    }

    /// The same on the caller's thread, which must not be one that serves others.
    pub fn prepare_blocking(
        &self,
        component: &[u8],
        limits: Limits,
    ) -> Result<Arc<Program>, Error> {
        let bytes = component.len() as u64;
        if bytes > self.0.settings.component_limit {
            return Err(Error::TooLarge { bytes, limit: self.0.settings.component_limit });
        }
        encode::check(component)?;
        let digest = Digest::of(component);
        let large = limits.memory > self.0.shape.max_memory;
        let limits = Arc::new(limits);
        let compiled = match self.0.known(digest, large) {
            Some(compiled) => compiled,
            None => {
                let _compiling = self.0.compiling.lock().unwrap_or_else(PoisonError::into_inner);
                match self.0.known(digest, large) {
                    Some(compiled) => compiled,
                    None => self.0.compile(component, digest, large, &limits)?,
                }
            }
        };
        Ok(Arc::new(Program::new(self.0.clone(), compiled, limits)))
    }

    /// What this host came to at start, and how many instances live now.
    pub fn shape(&self) -> Shape {
        let live = self.0.live.load(Relaxed);
        Shape { live, large: self.0.large.get().is_some(), ..self.0.shape.clone() }
    }
}

impl Inner {
    fn known(&self, digest: Digest, large: bool) -> Option<Arc<Compiled>> {
        self.compiled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(digest, large))?
            .upgrade()
    }

    fn compile(
        self: &Arc<Self>,
        bytes: &[u8],
        digest: Digest,
        large: bool,
        limits: &Arc<Limits>,
    ) -> Result<Arc<Compiled>, Error> {
        let mut room = if large { self.large()? } else { &self.main };
        let mut component = self.component(room, bytes, digest)?;
        let mut exports = world::check(&component)?;
        if !room.fits(&component) {
            // Several memories or many tables: outside the pool it only costs address space.
            room = self.large()?;
            component = self.component(room, bytes, digest)?;
            exports = world::check(&component)?;
        }
        let compiled = Arc::new(Compiled::new(self, room, &component, exports, digest, limits)?);
        let mut all = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, compiled| compiled.strong_count() > 0);
        all.insert((digest, large), Arc::downgrade(&compiled));
        Ok(compiled)
    }

    fn component(&self, room: &Room, bytes: &[u8], digest: Digest) -> Result<Component, Error> {
        if let Some(component) =
            self.cache.as_ref().and_then(|cache| cache.load(&room.engine, &digest))
        {
            return Ok(component);
        }
        let invalid = |error: wasmtime::Error| Error::Invalid(format!("{error:#}"));
        let component = Component::from_binary(&room.engine, bytes).map_err(invalid)?;
        if let Some(cache) = &self.cache {
            cache.store(&room.engine, &digest, &component.serialize().map_err(invalid)?);
        }
        Ok(component)
    }

    /// The second engine; made at its first use, under the lock for compiling.
    fn large(&self) -> Result<&Room, Error> {
        if self.large.get().is_none() {
            let room = engine::large(&self.shape, &self.settings)?;
            self.ticker.add(&room.engine);
            return Ok(self.large.get_or_init(|| room));
        }
        self.large.get().ok_or_else(|| Error::Engine("the second engine is gone".into()))
    }

    /// A place for one more instance.
    pub(crate) fn place(self: &Arc<Self>) -> Result<Place, Error> {
        let limit = self.shape.max_live;
        let taken =
            self.live.fetch_update(Relaxed, Relaxed, |live| (live < limit).then_some(live + 1));
        taken.map_err(|_| Error::NoRoom { limit })?;
        Ok(Place(self.clone()))
    }

    pub(crate) fn max_live(&self) -> u32 {
        self.shape.max_live
    }

    pub(crate) fn tick(&self) -> std::time::Duration {
        self.settings.tick
    }
}

/// One of the `max_live` places; given back when dropped.
pub(crate) struct Place(pub(crate) Arc<Inner>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Relaxed);
    }
}
