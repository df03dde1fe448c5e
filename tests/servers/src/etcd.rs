//! An etcd cluster for tests, from Debian's packages: its own directories and ports. Its members end with the value.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::clock;
use crate::disk::SmallDisk;

/// Timeout for each step.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running etcd cluster.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Member>,
    arguments: Vec<String>,
    dir: TempDir,
    tls: bool,
}

#[derive(Debug)]
struct Member {
    process: Option<Child>,
    /// For clients, and for the other members.
    ports: [u16; 2],
    data: PathBuf,
    /// By how many seconds its clock is ahead.
    ahead: i64,
}

fn program(name: &str) -> Option<PathBuf> {
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs).map(|dir| dir.join(name)).find(|path| path.exists())
}

impl Cluster {
    /// Starts a new cluster with this many members.
    #[must_use]
    pub fn start(members: usize) -> Self {
        Self::start_with(members, &[], &[])
    }

    /// Starts a new cluster with these further arguments, and these files in the directory `{dir}`.
    #[must_use]
    pub fn start_with(members: usize, arguments: &[&str], files: &[(&str, &str)]) -> Self {
        Self::start_in(&vec![None; members], arguments, files)
    }

    /// Starts a new cluster with a member on each of these disks, and these further arguments.
    #[must_use]
    pub fn start_on(disks: &[SmallDisk], arguments: &[&str]) -> Self {
        Self::start_in(&disks.iter().map(Some).collect::<Vec<_>>(), arguments, &[])
    }

    fn start_in(disks: &[Option<&SmallDisk>], arguments: &[&str], files: &[(&str, &str)]) -> Self {
        let find = || program("etcd").and(program("etcdctl"));
        crate::find_or_install("etcd", &["etcd-server", "etcd-client"], find);
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        let place = dir.path().to_str().expect("a path").to_owned();
        let members = disks.iter().enumerate().map(|(at, disk)| {
            let ports = [crate::free_port(), crate::free_port()];
            let data = disk.map_or(dir.path(), SmallDisk::path).join(format!("data{at}"));
            Member { process: None, ports, data, ahead: 0 }
        });
        let members = members.collect();
        let mut cluster = Self {
            members,
            arguments: arguments.iter().map(|it| it.replace("{dir}", &place)).collect(),
            dir,
            tls: arguments.iter().any(|it| it.contains("cert-file")),
        };
        (0..cluster.members.len()).for_each(|at| cluster.spawn(at));
        cluster.wait();
        cluster
    }

    fn spawn(&mut self, at: usize) {
        let scheme = if self.tls { "https" } else { "http" };
        let [client, peer] = self.members[at].ports;
        let peers = self
            .members
            .iter()
            .enumerate()
            .map(|(at, member)| format!("m{at}=http://127.0.0.1:{}", member.ports[1]));
        let peers = peers.collect::<Vec<_>>().join(",");
        let log = std::fs::File::create(self.dir.path().join(format!("log{at}"))).expect("a log");
        let mut command = Command::new(program("etcd").expect("etcd"));
        command.args(["--name", &format!("m{at}"), "--data-dir"]).arg(self.data(at));
        command.args(["--listen-client-urls", &format!("{scheme}://127.0.0.1:{client}")]);
        command.args(["--advertise-client-urls", &format!("{scheme}://127.0.0.1:{client}")]);
        command.args(["--listen-peer-urls", &format!("http://127.0.0.1:{peer}")]);
        command.args(["--initial-advertise-peer-urls", &format!("http://127.0.0.1:{peer}")]);
        command.args(["--initial-cluster", &peers, "--logger", "zap", "--log-level", "warn"]);
        command.args(&self.arguments);
        command.stdout(Stdio::null()).stderr(log);
        self.members[at].process = Some(command.spawn().expect("etcd"));
        if self.members[at].ahead != 0 {
            self.set_clock(at, self.members[at].ahead);
        }
    }

    /// Lets the clock of a running member jump: it is ahead by this many seconds from now on, also after a restart.
    pub fn set_clock(&mut self, member: usize, ahead: i64) {
        let member = &mut self.members[member];
        member.ahead = ahead;
        clock::set_ahead(member.process.as_ref().expect("a running member").id(), ahead);
    }

    /// The year by a member's clock.
    #[must_use]
    pub fn year(&self, member: usize) -> i64 {
        let answer = self.health(member).unwrap_or_default();
        // As in "Date: Fri, 28 Nov 2036 17:03:46 GMT".
        let date = answer.lines().find(|line| line.starts_with("Date: "));
        let year = date.and_then(|date| date.split(' ').nth(4)).and_then(|year| year.parse().ok());
        year.expect("a date")
    }

    /// The directory of a member's data.
    #[must_use]
    pub fn data(&self, member: usize) -> PathBuf {
        self.members[member].data.clone()
    }

    /// Waits until each running member serves.
    pub fn wait(&mut self) {
        let until = Instant::now() + TIMEOUT;
        while !(0..self.members.len()).all(|at| self.serves(at)) {
            assert!(Instant::now() < until, "etcd does not answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn serves(&self, at: usize) -> bool {
        let member = &self.members[at];
        if member.process.is_none() {
            return true;
        }
        // Over TLS, a port that accepts connections must do.
        match self.tls {
            true => TcpStream::connect(("127.0.0.1", member.ports[0])).is_ok(),
            false => self.health(at).is_some_and(|answer| answer.contains("\"true\"")),
        }
    }

    /// What a member answers who is asked for its health.
    fn health(&self, at: usize) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.members[at].ports[0])).ok()?;
        let mut answer = String::new();
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").ok()?;
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// The members' addresses for clients.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("127.0.0.1:{}", member.ports[0])).collect()
    }

    /// The ids of the members' processes.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        self.members.iter().filter_map(|it| it.process.as_ref().map(Child::id)).collect()
    }

    /// A member's port for clients.
    #[must_use]
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].ports[0]
    }

    /// The member that leads.
    #[must_use]
    pub fn leader(&self) -> usize {
        let until = Instant::now() + TIMEOUT;
        loop {
            let status = self.ctl(&["endpoint", "status"]).unwrap_or_else(|partial| partial);
            let leader = status.lines().position(|line| line.split(", ").nth(4) == Some("true"));
            let line = leader.and_then(|at| status.lines().nth(at));
            let endpoint = line.and_then(|line| line.split(", ").next());
            if let Some(at) = self.endpoints().iter().position(|it| Some(it.as_str()) == endpoint) {
                return at;
            }
            assert!(Instant::now() < until, "no member leads: {status}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Runs `etcdctl` against all members.
    ///
    /// # Errors
    /// What it prints, if it fails.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program("etcdctl").expect("etcdctl"));
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoints().join(",")]);
        let out = command.args(arguments).output().expect("etcdctl");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match out.status.success() {
            true => Ok(text(&out.stdout)),
            false => Err(text(&out.stdout) + &text(&out.stderr)),
        }
    }

    /// Sends a member's process a signal; SIGSTOP and SIGCONT pause it.
    pub fn signal(&self, member: usize, signal: Signal) {
        let process = self.members[member].process.as_ref().expect("a running member");
        let pid = Pid::from_raw(process.id().try_into().expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("signalled");
    }

    /// Ends a member's process with SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.signal(member, Signal::SIGKILL);
        if let Some(mut process) = self.members[member].process.take() {
            process.wait().expect("it ends");
        }
    }

    /// Starts a killed member again, and waits until it serves.
    pub fn restart(&mut self, member: usize) {
        self.spawn(member);
        self.wait();
    }

    /// Whether a member's process has ended by itself.
    #[must_use]
    pub fn has_ended(&mut self, member: usize) -> bool {
        let process = self.members[member].process.as_mut();
        process.is_some_and(|process| process.try_wait().expect("its state").is_some())
    }

    /// Starts all members again that have ended by themselves, and waits until all serve.
    pub fn restart_ended(&mut self) {
        let until = Instant::now() + TIMEOUT;
        loop {
            for at in 0..self.members.len() {
                if self.has_ended(at) {
                    self.spawn(at);
                }
            }
            if (0..self.members.len()).all(|at| self.serves(at)) {
                return;
            }
            assert!(Instant::now() < until, "etcd does not answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills all members, changes their data, and starts them again.
    pub fn restart_all(&mut self, meanwhile: impl FnOnce(&Self)) {
        (0..self.members.len()).for_each(|at| self.kill(at));
        meanwhile(self);
        (0..self.members.len()).for_each(|at| self.spawn(at));
        self.wait();
    }

    /// What the members have logged.
    #[must_use]
    pub fn log(&self) -> String {
        let logs = (0..self.members.len()).map(|at| {
            let log = std::fs::read_to_string(self.dir.path().join(format!("log{at}")));
            format!("member {at}:\n{}", log.unwrap_or_default())
        });
        logs.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut process) = member.process.take() {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
        if std::thread::panicking() {
            eprintln!("etcd's log:\n{}", self.log());
        }
    }
}
