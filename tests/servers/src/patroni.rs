//! Two PostgreSQL servers under Patroni, from Debian's packages. Patroni keeps its leader in an etcd cluster, lets commits
//! wait for the standby, and promotes it when the primary ends. All processes end with the value.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::{etcd, postgres};

/// Timeout for each step: a new standby copies the primary's data, and Patroni looks once a second.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Two servers of one PostgreSQL cluster.
#[derive(Debug)]
pub struct Patroni {
    members: [Member; 2],
    _dir: TempDir,
}

#[derive(Debug)]
struct Member {
    process: Option<Child>,
    /// PostgreSQL's port and the one of Patroni's API.
    ports: [u16; 2],
    dir: PathBuf,
}

fn find() -> Option<PathBuf> {
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs).map(|dir| dir.join("patroni")).find(|path| path.exists())
}

impl Member {
    fn name(&self) -> String {
        self.dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn configuration(&self, etcd: &[String], programs: &Path) -> String {
        let [port, api] = self.ports;
        // A crashed primary is not started in place: the standby takes over at once. Patroni accepts no `ttl` below 20 s.
        format!(
            "scope: ostraca\n\
             name: {name}\n\
             restapi: {{listen: '127.0.0.1:{api}', connect_address: '127.0.0.1:{api}'}}\n\
             etcd3: {{hosts: [{etcd}]}}\n\
             bootstrap:\n\
             \x20 dcs:\n\
             \x20   ttl: 20\n\
             \x20   loop_wait: 1\n\
             \x20   retry_timeout: 3\n\
             \x20   primary_start_timeout: 0\n\
             \x20   master_start_timeout: 0\n\
             \x20   synchronous_mode: true\n\
             \x20   postgresql: {{use_pg_rewind: true, parameters: {{wal_log_hints: 'on'}}}}\n\
             \x20 initdb: [{{auth: trust}}, {{encoding: UTF8}}, {{locale: C}}]\n\
             postgresql:\n\
             \x20 listen: '127.0.0.1:{port}'\n\
             \x20 connect_address: '127.0.0.1:{port}'\n\
             \x20 data_dir: {data}\n\
             \x20 bin_dir: {programs}\n\
             \x20 pgpass: {pgpass}\n\
             \x20 authentication: {{superuser: {{username: postgres}}, replication: {{username: postgres}}}}\n\
             \x20 parameters: {{unix_socket_directories: ''}}\n\
             \x20 pg_hba: ['host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust']\n",
            name = self.name(),
            etcd = etcd.iter().map(|it| format!("'{it}'")).collect::<Vec<_>>().join(", "),
            data = self.dir.join("data").display(),
            programs = programs.display(),
            pgpass = self.dir.join("pgpass").display(),
        )
    }

    fn run(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log"));
        let log = log.expect("a log");
        let mut command = Command::new(find().expect("patroni"));
        command.arg(self.dir.join("patroni.yml")).current_dir(&self.dir).env("HOME", &self.dir);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        self.process = Some(postgres::as_other_user(&mut command).spawn().expect("patroni"));
    }

    /// The process of the PostgreSQL server. The file stays when it is killed, and another process may get its number.
    fn postmaster(&self) -> Option<Pid> {
        let data = self.dir.join("data");
        let file = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let pid: i32 = file.lines().next()?.parse().ok()?;
        let works_in = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        (works_in == data.canonicalize().ok()?).then(|| Pid::from_raw(pid))
    }

    /// Ends both processes at once, Patroni's first, so that it does not react.
    fn kill(&mut self) {
        let mut patroni = self.process.take();
        if let Some(process) = &mut patroni {
            let _ = process.kill();
        }
        self.kill_postgres();
        if let Some(process) = &mut patroni {
            let _ = process.wait();
        }
    }

    fn kill_postgres(&self) {
        if let Some(server) = self.postmaster() {
            let _ = nix::sys::signal::kill(server, Signal::SIGKILL);
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Patroni {
    /// Starts both servers, and waits until commits wait for the standby.
    #[must_use]
    pub fn start(etcd: &etcd::Cluster) -> Self {
        crate::find_or_install("Patroni", &["patroni", "python3-etcd"], find);
        let (dir, programs) = (tempfile::tempdir().expect("a directory"), postgres::programs());
        postgres::give_to_server(dir.path());
        let members = ["p0", "p1"].map(|name| {
            let ports = [crate::free_port(), crate::free_port()];
            let mut member = Member { process: None, ports, dir: dir.path().join(name) };
            std::fs::create_dir(&member.dir).expect("a directory");
            let text = member.configuration(&etcd.endpoints(), programs);
            std::fs::write(member.dir.join("patroni.yml"), text).expect("written");
            postgres::give_to_server(&member.dir);
            member.run();
            member
        });
        let patroni = Self { members, _dir: dir };
        patroni.wait_replicating();
        patroni
    }

    /// PostgreSQL's port of each server.
    #[must_use]
    pub fn ports(&self) -> [u16; 2] {
        [0, 1].map(|at: usize| self.members[at].ports[0])
    }

    /// Runs SQL on the primary.
    ///
    /// # Errors
    /// What psql says.
    pub fn sql(&self, sql: &str) -> Result<String, String> {
        let primary = self.primary().ok_or("no server is the primary")?;
        postgres::psql(self.members[primary].ports[0], "postgres", sql)
    }

    /// The server that is the primary.
    #[must_use]
    pub fn primary(&self) -> Option<usize> {
        (0..2).find(|at| self.api(*at, "/primary").is_some())
    }

    /// Waits until one of the servers is the primary and the other one its synchronous standby.
    pub fn wait_replicating(&self) {
        let until = Instant::now() + TIMEOUT;
        while !(0..2).any(|at| self.api(at, "/sync").is_some()) || self.primary().is_none() {
            assert!(Instant::now() < until, "no synchronous standby:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends the primary's PostgreSQL with SIGKILL, and its Patroni as well if the whole machine is to fail. Returns which
    /// it was.
    pub fn kill_primary(&mut self, machine: bool) -> usize {
        let primary = self.primary().expect("a primary");
        match machine {
            true => self.members[primary].kill(),
            false => self.members[primary].kill_postgres(),
        }
        primary
    }

    /// Starts a server's Patroni again after the machine has failed.
    pub fn restart(&mut self, member: usize) {
        if self.members[member].process.is_none() {
            self.members[member].run();
        }
    }

    /// What Patroni's API answers, if it agrees.
    fn api(&self, member: usize, path: &str) -> Option<Value> {
        let address = ("127.0.0.1", self.members[member].ports[1]);
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.lines()
            .next()?
            .contains(" 200 ")
            .then(|| serde_json::from_str(body).unwrap_or_default())
    }

    /// What the members have logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.members.each_ref().map(|it| format!("{}:\n{}", it.name(), it.log())).join("\n")
    }
}

impl Drop for Patroni {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(Member::kill);
        if std::thread::panicking() {
            eprintln!("Patroni's log:\n{}", self.log());
        }
    }
}
