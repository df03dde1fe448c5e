//! A health check by a program of the operator.
//!
//! The program is started without a shell, in a process group of its own. Its exit code alone decides: 0 says that the
//! process of the incarnation is known to have ended, 1 that it runs or that nobody knows. Everything else says only
//! that the program is wrong: another code, a signal, too much output, or no end within the time-out.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::check::{CheckOutcome, HealthCheck};
use crate::error::HealthCheckError;
use crate::suspect::Suspect;

/// Maximum size of what a program prints, in bytes: 64 KiB. One that prints more is killed.
const MAX_OUTPUT: usize = 64 << 10;
/// How much of that the log quotes, in bytes.
const QUOTED: usize = 512;
/// Maximum number of programs at the same time. Checks of further nodes wait, within their time-outs.
const MAX_PROGRAMS: usize = 8;
/// How long the output of a program that has ended may take to arrive. A child of it may keep the output open.
const DRAIN: Duration = Duration::from_millis(50);

/// The settings of a [`CommandCheck`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandSettings {
    /// The absolute path of the program.
    pub program: PathBuf,
    /// Its first arguments; the node's name and incarnation follow.
    pub arguments: Vec<String>,
    /// How long it may take before it is killed.
    pub timeout: Duration,
}

/// Asks a program whether a process has ended.
#[derive(Debug)]
pub struct CommandCheck {
    settings: CommandSettings,
    slots: Semaphore,
}

/// How a program ended.
enum End {
    Exited(ExitStatus),
    PrintedTooMuch,
    TimedOut,
    Lost(io::Error),
}

/// A program that has not ended is killed, with everything that it started in its process group.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The id is that of the group, and it is not reused before the program has been waited for.
        let id = self.0.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(group) = id {
            // A program that has just ended is gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl CommandCheck {
    /// Prepares checks by this program.
    ///
    /// # Errors
    /// [`HealthCheckError::Program`] if it is not an absolute path to a file that may be executed.
    pub fn new(settings: CommandSettings) -> Result<Self, HealthCheckError> {
        let unusable =
            |why: String| HealthCheckError::Program { program: settings.program.clone(), why };
        if !settings.program.is_absolute() {
            return Err(unusable("it is not an absolute path".into()));
        }
        let found = std::fs::metadata(&settings.program);
        let found = found.map_err(|error| unusable(error.to_string()))?;
        if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
            return Err(unusable("it is not a file that may be executed".into()));
        }
        Ok(Self { settings, slots: Semaphore::new(MAX_PROGRAMS) })
    }

    async fn ask(&self, suspect: &Suspect) -> CheckOutcome {
        let until = Instant::now() + self.settings.timeout;
        let Ok(_slot) = timeout_at(until, self.slots.acquire()).await else {
            return CheckOutcome::failed("too many health checks at the same time");
        };
        let (child, output) = match self.start(suspect) {
            Ok(started) => started,
            Err(error) => {
                let program = self.settings.program.display();
                return CheckOutcome::failed(format!("cannot run {program}: {error}"));
            }
        };
        let (mut running, mut printed) = (Running(child), Vec::new());
        let end = wait(&mut running.0, output, &mut printed, until).await;
        self.judge(end, &printed)
    }

    fn start(&self, suspect: &Suspect) -> io::Result<(Child, Receiver)> {
        let (reader, writer) = io::pipe()?;
        let output = Receiver::from_owned_fd(OwnedFd::from(reader))?;
        let mut command = Command::new(&self.settings.program);
        command
            .args(&self.settings.arguments)
            .arg(&*suspect.member.node.0)
            .arg(suspect.incarnation())
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .process_group(0)
            .kill_on_drop(true);
        for name in Suspect::FIELDS {
            let variable = format!("OSTRACA_{}", name.to_uppercase());
            match suspect.field(name) {
                Some(value) => command.env(variable, value),
                // What this node itself has inherited says nothing about the other one.
                None => command.env_remove(variable),
            };
        }
        Ok((command.spawn()?, output))
    }

    fn judge(&self, end: End, printed: &[u8]) -> CheckOutcome {
        let program = self.settings.program.display();
        let quoted = &printed[..printed.len().min(QUOTED)];
        let text = String::from_utf8_lossy(quoted);
        let printed = format!("it printed {:?}", text.trim());
        let wrong = |what: String| CheckOutcome::failed(format!("{program} {what}; {printed}"));
        match end {
            End::Exited(status) => match status.code() {
                Some(0) => {
                    CheckOutcome::Ended { how: format!("{program} ended with 0; {printed}") }
                }
                Some(1) => {
                    CheckOutcome::NotKnown { why: format!("{program} ended with 1; {printed}") }
                }
                Some(code) => wrong(format!("ended with {code}, which is neither 0 nor 1")),
                None => wrong(format!("was killed ({status})")),
            },
            End::PrintedTooMuch => wrong(format!("printed more than {MAX_OUTPUT} bytes")),
            End::TimedOut => wrong(format!(
                "was killed after {:?} (`health-check.timeout`)",
                self.settings.timeout
            )),
            End::Lost(error) => wrong(format!("cannot be waited for: {error}")),
        }
    }
}

impl HealthCheck for CommandCheck {
    fn check<'a>(&'a self, suspect: &'a Suspect) -> BoxFuture<'a, CheckOutcome> {
        self.ask(suspect).boxed()
    }
}

/// Waits until the program has ended, and keeps what it prints.
async fn wait(child: &mut Child, output: Receiver, printed: &mut Vec<u8>, until: Instant) -> End {
    let reading = read(output, printed);
    tokio::pin!(reading);
    let mut is_open = true;
    let end = loop {
        tokio::select! {
            status = child.wait() => break status.map_or_else(End::Lost, End::Exited),
            () = sleep_until(until) => break End::TimedOut,
            too_much = &mut reading, if is_open => {
                is_open = false;
                if too_much {
                    break End::PrintedTooMuch;
                }
            }
        }
    };
    match end {
        End::Exited(_) if is_open => match timeout(DRAIN, reading).await {
            Ok(true) => End::PrintedTooMuch,
            Ok(false) | Err(_) => end,
        },
        end => end,
    }
}

/// Reads to the end of the output. Returns whether it exceeds the limit; then the rest is not read.
async fn read(mut output: Receiver, printed: &mut Vec<u8>) -> bool {
    loop {
        printed.reserve(4 << 10);
        // An output that cannot be read has ended.
        match output.read_buf(printed).await {
            Ok(0) | Err(_) => return false,
            Ok(_) if printed.len() > MAX_OUTPUT => return true,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suspect::tests::suspect;

    fn shell(script: &str, timeout: Duration) -> CommandCheck {
        let arguments = ["-c", script, "check"].map(str::to_owned).to_vec();
        CommandCheck::new(CommandSettings { program: "/bin/sh".into(), arguments, timeout })
            .expect("a shell")
    }

    async fn run(script: &str) -> CheckOutcome {
        shell(script, Duration::from_secs(30)).check(&suspect()).await
    }

    #[tokio::test]
    async fn s7_exit_code_0_says_that_the_process_has_ended() {
        let found = run("echo gone").await;
        let CheckOutcome::Ended { how } = found else { panic!("{found:?}") };
        assert!(how.contains("\"gone\""), "{how}");
    }

    #[tokio::test]
    async fn s7_exit_code_1_changes_nothing_and_is_no_error() {
        let found = run("echo runs; exit 1").await;
        assert!(
            matches!(&found, CheckOutcome::NotKnown { why } if why.contains("runs")),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn s7_any_other_end_of_a_command_is_not_knowledge() {
        for (script, expected) in [
            ("exit 2", "ended with 2"),
            ("exit 126", "ended with 126"),
            ("exit 255", "ended with 255"),
            ("echo to stderr >&2; exit 3", "\"to stderr\""),
            ("kill -9 $$", "was killed"),
            ("kill -15 $$", "was killed"),
            ("no-such-program", "ended with 127"),
            ("printf '\\033[2J\\n\\377'; exit 9", "\\u{1b}[2J\\n\u{fffd}"),
        ] {
            let found = run(script).await;
            let CheckOutcome::Failed { why } = &found else { panic!("{script}: {found:?}") };
            assert!(why.contains(expected), "{script}: {why}");
        }
    }

    #[tokio::test]
    async fn s7_a_command_that_prints_too_much_is_not_knowledge() {
        for script in ["yes", "yes >&2", "head -c 70000 /dev/zero; exit 0"] {
            let found = run(script).await;
            let CheckOutcome::Failed { why } = &found else { panic!("{script}: {found:?}") };
            assert!(why.contains("more than 65536 bytes") && why.len() < 8_000, "{why}");
        }
        let found = run("head -c 60000 /dev/zero; exit 0").await;
        assert!(matches!(found, CheckOutcome::Ended { .. }), "within the limit");
    }

    #[tokio::test]
    async fn s7_a_command_is_killed_at_its_timeout() {
        let dir = tempfile::tempdir().expect("a directory");
        let pids = dir.path().join("pids");
        // Its child is killed too, although the shell does not wait for it.
        let script = format!(
            "trap '' TERM; sleep 600 & echo $$ $! > {0}.new; mv {0}.new {0}; echo so far; sleep 600; exit 0",
            pids.display()
        );
        let start = Instant::now();
        let found = shell(&script, Duration::from_secs(1)).check(&suspect()).await;
        let CheckOutcome::Failed { why } = &found else { panic!("{found:?}") };
        assert!(why.contains("killed after 1s") && why.contains("\"so far\""), "{why}");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        let pids = std::fs::read_to_string(pids).expect("the script ran");
        for pid in pids.split_whitespace() {
            wait_until_ended(pid).await;
        }
    }

    #[tokio::test]
    async fn a_check_that_is_dropped_kills_its_command() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("pid");
        let script =
            format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 600; exit 0", file.display());
        let (check, suspect) = (shell(&script, Duration::from_secs(600)), suspect());
        let checking = check.check(&suspect);
        let written = async {
            loop {
                match std::fs::read_to_string(&file) {
                    Ok(pid) => return pid,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let pid = tokio::select! {
            found = checking => panic!("{found:?}"),
            pid = written => pid,
        };
        wait_until_ended(pid.trim()).await;
    }

    /// A process that is killed may be a zombie until its parent has waited for it.
    async fn wait_until_ended(pid: &str) {
        for _ in 0..1_000 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{pid} still runs");
    }

    #[tokio::test]
    async fn a_command_is_told_which_process_it_is_asked_about() {
        let script = "echo $1 $2 $#; env | grep ^OSTRACA_ | grep -v ^OSTRACA_BUILT= | sort; exit 5";
        let CheckOutcome::Failed { why } = run(script).await else { panic!("it failed") };
        let expected = "n1 7-000000000000c5ab 2\\nOSTRACA_ADDRESSES=a:1 b:2\\nOSTRACA_BOOT_ID=b1\\n\
            OSTRACA_HOST=m 1\\nOSTRACA_INCARNATION=7-000000000000c5ab\\nOSTRACA_NODE=n1\\n\
            OSTRACA_PID=42\\nOSTRACA_PID_NAMESPACE=5\\nOSTRACA_START_TICKS=99";
        assert!(why.contains(expected), "{why}");
        let check = shell(script, Duration::from_secs(30));
        let unknown = Suspect { host: None, ..suspect() };
        let CheckOutcome::Failed { why } = check.check(&unknown).await else { panic!("failed") };
        assert!(!why.contains("OSTRACA_PID"), "{why}");
    }

    #[tokio::test]
    async fn an_ended_commands_child_does_not_hold_up_the_check() {
        let start = Instant::now();
        let found = run("sleep 20 & exit 1").await;
        assert!(matches!(found, CheckOutcome::NotKnown { .. }), "{found:?}");
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    }

    #[test]
    fn a_command_that_cannot_run_is_refused_at_once() {
        for (program, expected) in [
            ("sh", "not an absolute path"),
            ("/bin/no-such-program", "No such file"),
            ("/bin", "not a file"),
            ("/proc/version", "not a file that may be executed"),
        ] {
            let (program, arguments) = (program.into(), Vec::new());
            let timeout = Duration::from_secs(1);
            let error = CommandCheck::new(CommandSettings { program, arguments, timeout })
                .expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
