//! The compiler process: limits itself, compiles one component, and exits.

use std::ffi::OsString;
use std::io::{Read, Write};

use rustix::process::{Resource, Rlimit};
use wasmtime::Engine;

use super::{CompileJob, MISUSED, REFUSED};
use crate::codegen::compatibility;

/// Added to the process's nice value, so that the node has priority.
const NICE: i32 = 10;

/// Compiles the component on standard input, and returns the exit code.
pub(super) fn run(args: impl Iterator<Item = OsString>) -> i32 {
    let (code, text) = match CompileJob::read(args).and_then(|job| compile(&job)) {
        Ok(()) => return 0,
        Err(failed) => failed,
    };
    // The node may have stopped reading.
    let _ = std::io::stderr().write_all(text.as_bytes());
    code
}

type Failed = (i32, String);

fn misused(text: impl ToString) -> Failed {
    (MISUSED, text.to_string())
}

impl CompileJob {
    fn read(args: impl Iterator<Item = OsString>) -> Result<CompileJob, Failed> {
        let args: Vec<_> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
        let [code, compatibility, memory, seconds] = &args[..] else {
            return Err(misused(format!("expected four arguments, got {}", args.len())));
        };
        Ok(CompileJob {
            code: code.parse().map_err(misused)?,
            compatibility: compatibility.clone(),
            memory: memory.parse().map_err(misused)?,
            seconds: seconds.parse().map_err(misused)?,
        })
    }
}

fn compile(job: &CompileJob) -> Result<(), Failed> {
    confine(job).map_err(|error| misused(format!("cannot limit the compiler process: {error}")))?;
    let engine = Engine::new(&job.code.config()).map_err(|error| misused(format!("{error:#}")))?;
    if compatibility(&engine) != job.compatibility {
        return Err(misused("the compiler's release or target machine differs from the node's"));
    }
    let mut component = Vec::new();
    std::io::stdin().lock().read_to_end(&mut component).map_err(misused)?;
    let code =
        engine.precompile_component(&component).map_err(|error| (REFUSED, format!("{error:#}")))?;
    let mut out = std::io::stdout().lock();
    out.write_all(&code).and_then(|()| out.flush()).map_err(misused)
}

/// Limits this process to what a compilation needs.
fn confine(job: &CompileJob) -> rustix::io::Result<()> {
    let limit = |resource, most: u64| {
        // A lower limit that the node itself runs under is kept.
        let current = rustix::process::getrlimit(resource).maximum;
        let most = Some(current.map_or(most, |current| most.min(current)));
        rustix::process::setrlimit(resource, Rlimit { current: most, maximum: most })
    };
    limit(Resource::As, job.memory)?;
    limit(Resource::Fsize, job.memory)?;
    limit(Resource::Core, 0)?;
    // The node enforces the timeout in elapsed time. This limit ends the process if the node is gone.
    limit(Resource::Cpu, job.seconds)?;
    // The rest is not needed for the node's safety, and may be forbidden in some environments.
    let _ = rustix::process::nice(NICE);
    #[cfg(target_os = "linux")]
    {
        let _ =
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        // If the machine still runs out of memory, this process is killed first.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
    Ok(())
}
