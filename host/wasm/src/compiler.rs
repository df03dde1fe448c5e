//! Compiles components in a separate process.
//!
//! How much memory and time a compilation needs depends on the component in ways that no count of its parts predicts,
//! and a compiler may have bugs. So the compiler runs in a process with its own limits: whatever happens there, the
//! node refuses one component and continues. The process runs either this same program, with a first argument that
//! makes it act as the compiler ([`compiler_main`]), or the program that the settings name. It receives the component
//! and returns native code in unnamed files that only the two processes have open.
//!
//! Native code never comes from anywhere else: not from a peer, and not from a client.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use wasmtime::Engine;

use crate::cancel::{CancelToken, cancelled};
use crate::codegen::{CodegenConfig, compatibility};
use crate::text::printable;
use crate::{CompilerProgram as Program, CompilerSettings, Error};

mod child;
mod memory;

/// The first argument that makes a program act as the compiler.
const MARKER: &str = "ostraca-compile-one-component";
/// Exit codes of the compiler process: `REFUSED` if the component does not compile, `MISUSED` for every other failure
/// that it reports.
const REFUSED: i32 = 3;
const MISUSED: i32 = 4;
/// How many bytes of the compiler's standard error are kept.
const MAX_STDERR_BYTES: u64 = 4 << 10;
/// Maximum number of threads that compile one component.
const THREADS: usize = 4;
/// Messages that indicate that memory ran out: from the allocator as it aborts, from the system when it cannot provide
/// a mapping or a thread's stack, and from Cranelift's maps, which panic.
const OUT_OF_MEMORY: [&str; 4] = [
    "memory allocation of",
    "Cannot allocate memory",
    "Resource temporarily unavailable",
    "unhandled out-of-memory error",
];
/// The usual cause of a SIGKILL that nobody sent by hand: the compiler has its own memory limit, but the limit of its
/// control group may be lower.
const KILLED: &str = "the kernel kills a process when its machine or control group runs out of memory; lower max-memory in [compiler], or give the node more. ";
/// The shortest and the longest pause between two checks for the compiler's exit.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Whether this program can act as its own compiler, because it has called [`compiler_main`].
static OWN: AtomicBool = AtomicBool::new(false);

/// Lets this program act as its own compiler. Call this function first in `main`. If the program was started to compile
/// a component, the function compiles that component and exits the process; otherwise it returns immediately.
pub fn compiler_main() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == MARKER) {
        std::process::exit(child::run(args));
    }
    OWN.store(true, Ordering::Relaxed);
}

/// What the compiler process needs besides the component.
struct CompileJob {
    /// The configuration of the engine.
    code: CodegenConfig,
    /// The compatibility hash that the resulting engine must have.
    compatibility: String,
    /// The limit on address space in bytes.
    memory: u64,
    /// The limit on processor time in seconds, summed over all threads.
    seconds: u64,
}

pub(crate) struct Compiler {
    settings: CompilerSettings,
    memory: u64,
    /// Permits for compilations.
    free: Semaphore,
}

impl Compiler {
    pub(crate) fn new(settings: &CompilerSettings) -> Compiler {
        let memory = match settings.max_memory {
            0 => memory::default(memory::machine()),
            set => set,
        };
        let free = Semaphore::new(settings.max_concurrent.max(1));
        Compiler { settings: settings.clone(), memory, free }
    }

    /// Compiles a component for an engine, once a permit is free. Creates its files in `dir`.
    pub(crate) fn compile(
        &self,
        engine: &Engine,
        code: &CodegenConfig,
        component: &[u8],
        dir: Option<&Path>,
        cancel: &CancelToken,
    ) -> Result<Vec<u8>, Error> {
        let _permit = cancel
            .block_on(self.free.acquire())
            .ok_or_else(cancelled)?
            .map_err(|error| Error::ThreadFailed(error.to_string()))?;
        let program = match &self.settings.program {
            Program::InProcess => {
                return engine
                    .precompile_component(component)
                    .map_err(|error| Error::InvalidComponent(format!("{error:#}")));
            }
            Program::Executable(path) => path.clone(),
            Program::CurrentExecutable if OWN.load(Ordering::Relaxed) => this_program()?,
            Program::CurrentExecutable => {
                let why = "this program cannot act as the compiler: its main must call compiler_main first, or program in [compiler] must name one that does, such as `ostraca`";
                return Err(Error::CompilerUnavailable(why.into()));
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS));
        let job = CompileJob {
            code: code.clone(),
            compatibility: compatibility(engine),
            memory: self.memory,
            seconds: self
                .settings
                .timeout
                .as_secs()
                .saturating_add(1)
                .saturating_mul(threads as u64),
        };
        let failed = |what: &str| {
            let what = format!("{what} for {}", program.display());
            move |error: std::io::Error| Error::CompilerUnavailable(format!("{what}: {error}"))
        };
        let mut input = file(dir).map_err(failed("make a file"))?;
        input.write_all(component).map_err(failed("write the component"))?;
        input.seek(SeekFrom::Start(0)).map_err(failed("write the component"))?;
        let mut output = file(dir).map_err(failed("make a file"))?;
        let mut stderr = file(dir).map_err(failed("make a file"))?;
        let shared = |file: &File| file.try_clone().map(Stdio::from);
        let child = Command::new(&program)
            .args(job.args())
            .env_clear()
            .env("RAYON_NUM_THREADS", threads.to_string())
            // Each of the allocator's arenas reserves address space.
            .env("MALLOC_ARENA_MAX", "2")
            .stdin(input)
            .stdout(shared(&output).map_err(failed("share a file"))?)
            .stderr(shared(&stderr).map_err(failed("share a file"))?)
            .spawn()
            .map_err(failed("start the compiler"))?;
        let status = self.wait(KillOnDrop(child), cancel)?;
        let stderr =
            beginning(&mut stderr).map_err(failed("read the compiler's standard error"))?;
        self.check_exit(status, &stderr)?;
        let mut native = Vec::new();
        output
            .seek(SeekFrom::Start(0))
            .and_then(|_| output.read_to_end(&mut native))
            .map_err(failed("read the code"))?;
        Ok(native)
    }

    fn wait(&self, mut child: KillOnDrop, cancel: &CancelToken) -> Result<ExitStatus, Error> {
        let deadline = Instant::now() + self.settings.timeout;
        let mut pause = POLL_INTERVALS.0;
        loop {
            let exited = child.0.try_wait();
            if let Some(status) =
                exited.map_err(|error| Error::CompilerUnavailable(error.to_string()))?
            {
                return Ok(status);
            }
            if cancel.is_cancelled() {
                return Err(cancelled());
            }
            if Instant::now() >= deadline {
                return Err(Error::CompileTime { limit: self.settings.timeout });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(POLL_INTERVALS.1);
        }
    }

    fn check_exit(&self, status: ExitStatus, stderr: &str) -> Result<(), Error> {
        if status.success() {
            return Ok(());
        }
        if OUT_OF_MEMORY.iter().any(|sign| stderr.contains(sign)) {
            return Err(Error::CompileMemory { limit: self.memory });
        }
        Err(match (status.code(), status.signal()) {
            (Some(REFUSED), _) => Error::InvalidComponent(stderr.to_owned()),
            (Some(MISUSED), _) => Error::CompilerUnavailable(stderr.to_owned()),
            (_, Some(signal)) if signal == rustix::process::Signal::XCPU.as_raw() => {
                Error::CompileTime { limit: self.settings.timeout }
            }
            (_, Some(signal)) if signal == rustix::process::Signal::KILL.as_raw() => {
                Error::CompilerCrashed { how: format!("{status}: {KILLED}{stderr}") }
            }
            _ => Error::CompilerCrashed { how: format!("{status}: {stderr}") },
        })
    }
}

impl CompileJob {
    fn args(&self) -> [String; 5] {
        let CompileJob { code, compatibility, memory, seconds } = self;
        [
            MARKER.into(),
            code.to_string(),
            compatibility.clone(),
            memory.to_string(),
            seconds.to_string(),
        ]
    }
}

/// Kills the process when dropped, unless it has exited by then.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // The process may have exited already. Either way it must be reaped, or it remains a zombie.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The executable of this process, even if another file has since replaced it at its path.
fn this_program() -> Result<PathBuf, Error> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe().map_err(|error| Error::CompilerUnavailable(error.to_string()))
}

/// Creates an unnamed file.
fn file(dir: Option<&Path>) -> std::io::Result<File> {
    match dir {
        Some(dir) => tempfile::tempfile_in(dir),
        None => tempfile::tempfile(),
    }
}

/// Returns the beginning of what was written to a file.
fn beginning(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(MAX_STDERR_BYTES).read_to_end(&mut bytes)?;
    Ok(printable(String::from_utf8_lossy(&bytes).trim_end()).into_owned())
}
