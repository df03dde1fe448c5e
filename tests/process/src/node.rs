//! A node's process. It is killed by process id when its value is dropped, even after a panic.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::node_dir::NodeDir;
use crate::{artifacts, usage};

/// Timeout of a start, generous enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of log lines that an error quotes.
const QUOTED: usize = 30;

/// A running `ostraca run`.
#[derive(Debug)]
pub struct NodeProcess {
    child: Child,
    /// The address at which it accepts clients.
    pub address: SocketAddr,
    /// The line in which the node announced its address.
    pub ready: String,
    log: PathBuf,
}

impl NodeProcess {
    /// Starts the node of a directory, and waits until it serves. It keeps its address across restarts.
    ///
    /// # Errors
    /// If the node ends before it is ready; the error quotes the end of its log.
    pub fn start(home: &NodeDir) -> Result<Self> {
        Self::start_as(home, |_| {})
    }

    /// Like [`NodeProcess::start`], with a change to the command (its environment).
    ///
    /// # Errors
    /// Those of [`NodeProcess::start`].
    pub fn start_as(home: &NodeDir, change: impl FnOnce(&mut Command)) -> Result<Self> {
        let mut command = Command::new(artifacts::ostraca()?);
        change(&mut command);
        Self::start_with(command, home)
    }

    /// Like [`NodeProcess::start`], with this program.
    ///
    /// # Errors
    /// Those of [`NodeProcess::start`].
    pub fn start_with(mut program: Command, home: &NodeDir) -> Result<Self> {
        let log = home.dir().with_file_name("node.log");
        program.arg("run").arg("--config").arg(home.config());
        let node = Self::spawn(program, &log)?;
        home.set(&format!("listen = \"{}\"", node.address))?;
        Ok(node)
    }

    fn spawn(mut command: Command, log: &Path) -> Result<Self> {
        let errors = OpenOptions::new().create(true).append(true).open(log)?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let stdout = child.stdout.take();
        // From now on, dropping `node` kills the process.
        let mut node = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            ready: String::new(),
            log: log.into(),
        };
        let stdout = stdout.context("no standard output")?;
        let (found, line) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The receiver is dropped once the node is ready.
                let _ = found.send(line);
            }
        });
        let ready = match line.recv_timeout(TIMEOUT) {
            Ok(ready) => ready,
            Err(_) => {
                let ended = node.child.try_wait()?;
                bail!("the node is not ready (ended: {ended:?}):\n{}", node.log_tail());
            }
        };
        let address = ready.rsplit(' ').next().unwrap_or_default();
        node.address = address.parse().with_context(|| format!("no address in {ready:?}"))?;
        node.ready = ready;
        Ok(node)
    }

    /// The node's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL and waits until the node has ended.
    ///
    /// # Errors
    /// If the process no longer exists.
    pub fn kill_9(mut self) -> Result<()> {
        if let Some(ended) = self.child.try_wait()? {
            bail!("the node had already ended ({ended}):\n{}", self.log_tail());
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM and waits until the node has ended.
    ///
    /// # Errors
    /// If it does not end within a minute.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.ended(TIMEOUT)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If the process no longer exists.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        Ok(kill(pid, signal)?)
    }

    /// Sends SIGSTOP, and waits until none of its threads runs any more.
    ///
    /// # Errors
    /// If the process no longer exists, or goes on for a minute.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let tasks = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let until = Instant::now() + TIMEOUT;
        while !all_stopped(&tasks)? {
            ensure!(Instant::now() < until, "the process does not stop");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits until the node has ended.
    ///
    /// # Errors
    /// If it does not end within `limit`.
    pub fn ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        ended(&mut self.child, limit)
    }

    /// Whether the process is still running.
    #[must_use]
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The node's resident memory in KiB.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn resident_kib(&self) -> Result<u64> {
        usage::resident_kib(self.child.id())
    }

    /// Processor time that the node has used, in user and system mode.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn processor_time(&self) -> Result<Duration> {
        usage::processor_time(self.child.id())
    }

    /// Everything that the node has logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Leaves the process running.
    #[must_use]
    pub fn leave_running(self) -> u32 {
        let pid = self.child.id();
        std::mem::forget(self);
        pid
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(QUOTED)..].join("\n")
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // An error means that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a child has ended; kills it if it takes too long.
///
/// # Errors
/// If it took too long.
pub fn ended(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            bail!("process {} did not end within {limit:?}", child.id());
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `ostraca run` with a configuration that must prevent the start. Returns its exit code and output.
///
/// # Errors
/// If it keeps running.
pub fn refused_start(config: &Path) -> Result<(i32, String)> {
    let dir = artifacts::scratch("refused")?;
    let stderr = tempfile::NamedTempFile::new_in(dir)?;
    let mut child = Command::new(artifacts::ostraca()?)
        .arg("run")
        .arg("--config")
        .arg(config)
        // Tests may run in a pod.
        .env_remove("KUBERNETES_SERVICE_HOST")
        .stdin(Stdio::null())
        .stdout(File::create("/dev/null")?)
        .stderr(stderr.reopen()?)
        .spawn()?;
    let status = ended(&mut child, TIMEOUT)?;
    let stderr = std::fs::read_to_string(stderr.path())?;
    Ok((status.code().unwrap_or(-1), stderr))
}

/// Whether the kernel has stopped all threads of a process.
fn all_stopped(tasks: &Path) -> Result<bool> {
    for task in tasks.read_dir().context("the threads of a process")? {
        // The state follows the name, which is in parentheses. A thread may have ended meanwhile.
        let stat = std::fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
        if stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" T")) {
            return Ok(false);
        }
    }
    Ok(true)
}
