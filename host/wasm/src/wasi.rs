//! The part of WASI 0.2 that guests get: the clock and the random numbers of the turn, and standard output to the log.
//!
//! Components for `wasm32-wasip2` import much more than they use. All of `wasi:cli`, `io`, `clocks`, `random`,
//! `filesystem` and `sockets` is linked, but there is nothing behind the rest: no environment, no arguments, no
//! preopened directory, no sockets. Outgoing HTTP is linked by `call_imports`.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};
use wasmtime_wasi::{WasiCtx, WasiCtxView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView};

use crate::http_hooks::HttpHooks;
use crate::log::{GuestLog, Level};
use crate::turn_values::TurnSource;

/// Maximum number of WASI resources (streams, pollables) that an instance may hold.
pub(crate) const RESOURCES: usize = 1_000;
/// Maximum number of random bytes per call.
const RANDOM: u64 = 1 << 20;

const PACKAGES: [&str; 6] =
    ["wasi:cli/", "wasi:io/", "wasi:clocks/", "wasi:random/", "wasi:filesystem/", "wasi:sockets/"];

/// The interfaces of `wasi:http` for outgoing calls.
const HTTP: [&str; 2] = ["wasi:http/types", "wasi:http/outgoing-handler"];
/// Maximum size in bytes of the headers of one request, about 70 for each of them included.
pub(crate) const FIELDS: usize = 16 << 10;

/// Whether an import is a WASI 0.2 interface that the host links.
pub(crate) fn is_linked(import: &str) -> bool {
    let (interface, version) = import.rsplit_once('@').unwrap_or((import, ""));
    let known = PACKAGES.iter().any(|package| interface.starts_with(package));
    version.starts_with("0.2.") && (known || HTTP.contains(&interface))
}

pub(crate) struct Wasi {
    context: WasiCtx,
    table: ResourceTable,
    http: WasiHttpCtx,
    hooks: HttpHooks,
    out: LogStream,
    err: LogStream,
}

impl Wasi {
    pub(crate) fn new(log: &Arc<GuestLog>, turn: &TurnSource) -> Box<Wasi> {
        let out = LogStream::new(log, Level::Info);
        let err = LogStream::new(log, Level::Warn);
        let seed = u128::from(turn.next_u64()) << 64 | u128::from(turn.next_u64());
        let context = WasiCtx::builder()
            .stdout(out.clone())
            .stderr(err.clone())
            .max_random_size(RANDOM)
            .wall_clock(turn.clone())
            .monotonic_clock(turn.clone())
            .secure_random(turn.clone())
            .insecure_random(turn.clone())
            // Fixed for the instance: most guests read it once, to seed their hash tables.
            .insecure_random_seed(seed)
            .allow_tcp(false)
            .allow_udp(false)
            .build();
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES);
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(FIELDS);
        Box::new(Wasi { context, table, http, hooks: HttpHooks, out, err })
    }

    /// The view that wasmtime's implementation works on.
    pub(crate) fn view(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.context, table: &mut self.table }
    }

    /// The same for `wasi:http`.
    pub(crate) fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }

    /// Logs the lines that have no line break yet. Called after each turn.
    pub(crate) fn flush(&self) {
        self.out.flush_rest();
        self.err.flush_rest();
    }
}

/// An output stream that logs whole lines.
#[derive(Clone)]
struct LogStream {
    log: Arc<GuestLog>,
    level: Level,
    begun: Arc<Mutex<Vec<u8>>>,
}

impl LogStream {
    fn new(log: &Arc<GuestLog>, level: Level) -> LogStream {
        LogStream { log: log.clone(), level, begun: Arc::default() }
    }

    fn push(&self, mut bytes: &[u8]) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&mut begun, &bytes[..end]);
            self.emit(&mut begun);
            bytes = &bytes[end + 1..];
        }
        self.extend(&mut begun, bytes);
    }

    /// Keeps only as much of a line as will be shown, and one more byte as a sign that it was cut.
    fn extend(&self, begun: &mut Vec<u8>, bytes: &[u8]) {
        let room = (self.log.max_line_bytes() + 1).saturating_sub(begun.len());
        begun.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn emit(&self, begun: &mut Vec<u8>) {
        self.log.line(self.level, &String::from_utf8_lossy(begun));
        begun.clear();
    }

    fn flush_rest(&self) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if !begun.is_empty() {
            self.emit(&mut begun);
        }
    }
}

impl IsTerminal for LogStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LogStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for LogStream {
    async fn ready(&mut self) {}
}

impl OutputStream for LogStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.push(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 << 10)
    }
}

impl AsyncWrite for LogStream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.push(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
