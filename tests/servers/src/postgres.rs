//! A PostgreSQL server for tests, from Debian's package: its own directory, port and user. It ends with the value.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::clock;
use crate::disk::SmallDisk;

/// Timeout for each step.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The directory with the server's programs; installs the package if this process may do so.
pub(crate) fn programs() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| crate::find_or_install("PostgreSQL", &["postgresql"], find))
}

fn find() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<_> = versions.flatten().map(|it| it.path().join("bin")).collect();
    found.retain(|bin| bin.join("postgres").exists());
    found.sort();
    found.pop()
}

/// What a new server is started with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup<'a> {
    /// Settings, one a line.
    pub settings: &'a str,
    /// Files in its directory: their names and texts.
    pub files: &'a [(&'a str, &'a str)],
    /// The disk that has its data. Default: that of temporary files.
    pub data: Option<&'a SmallDisk>,
    /// The disk that has its write-ahead log. Default: that of temporary files.
    pub log: Option<&'a SmallDisk>,
    /// By how many seconds its clock is ahead.
    pub ahead: i64,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    process: Option<Child>,
    dir: TempDir,
    data: PathBuf,
    ahead: i64,
    port: u16,
    databases: AtomicU32,
}

/// The user that the server runs as: PostgreSQL refuses to run as root.
pub(crate) fn as_other_user(command: &mut Command) -> &mut Command {
    if nix::unistd::geteuid().is_root() {
        let user = nix::unistd::User::from_name("postgres").expect("users").expect("postgres");
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command
}

pub(crate) fn give_to_server(path: &Path) {
    if nix::unistd::geteuid().is_root() {
        let user = nix::unistd::User::from_name("postgres").expect("users").expect("postgres");
        nix::unistd::chown(path, Some(user.uid), Some(user.gid)).expect("chown");
    }
}

/// Runs SQL with psql on the server at this port, and returns what it prints, or what it says if it fails.
pub(crate) fn psql(port: u16, database: &str, sql: &str) -> Result<String, String> {
    let mut command = Command::new(programs().join("psql"));
    command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres", "-d", database]);
    command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql]);
    let out = command.output().expect("psql");
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}

impl Server {
    /// Starts a new server with these settings, one a line.
    #[must_use]
    pub fn start(settings: &str) -> Self {
        Self::start_with(settings, &[])
    }

    /// Starts a new server with these settings, and these files in its directory.
    #[must_use]
    pub fn start_with(settings: &str, files: &[(&str, &str)]) -> Self {
        Self::start_as(Setup { settings, files, ..Setup::default() })
    }

    /// Starts a new server with this setup.
    #[must_use]
    pub fn start_as(setup: Setup<'_>) -> Self {
        let Setup { settings, files, .. } = setup;
        let dir = tempfile::tempdir().expect("a directory");
        let programs = programs();
        let disks = [setup.data, setup.log].map(|disk| disk.map_or(dir.path(), SmallDisk::path));
        for path in [dir.path(), disks[0], disks[1]] {
            give_to_server(path);
        }
        let [data, log] = [disks[0].join("data"), disks[1].join("wal")];
        let mut init = Command::new(programs.join("initdb"));
        init.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "-D"]);
        init.arg(&data).current_dir(dir.path()).stdout(Stdio::null());
        if setup.log.is_some() {
            // Small segments, so that a full disk is felt soon.
            init.arg("--waldir").arg(log).arg("--wal-segsize=1");
        }
        assert!(as_other_user(&mut init).status().expect("initdb").success());
        let settings =
            format!("listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\n{settings}\n");
        let path = data.join("postgresql.conf");
        let text = std::fs::read_to_string(&path).expect("the settings");
        std::fs::write(&path, text + &settings).expect("written");
        for (name, text) in files {
            let path = data.join(name);
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
            give_to_server(&path);
        }
        let (port, databases) = (crate::free_port(), AtomicU32::new(0));
        let mut server = Self { process: None, dir, data, ahead: setup.ahead, port, databases };
        server.run();
        server
    }

    /// Starts a standby of this server, on a port of its own. It ends with its value.
    #[must_use]
    pub fn standby(&self) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        give_to_server(dir.path());
        let mut copy = Command::new(programs().join("pg_basebackup"));
        copy.args(["-h", "127.0.0.1", "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "-p"]);
        let data = dir.path().join("data");
        copy.arg(self.port.to_string()).arg("-D").arg(&data);
        copy.current_dir(dir.path()).stdout(Stdio::null());
        assert!(as_other_user(&mut copy).status().expect("pg_basebackup").success());
        let (port, databases) = (crate::free_port(), AtomicU32::new(0));
        let mut standby = Self { process: None, dir, data, ahead: 0, port, databases };
        standby.run();
        standby
    }

    /// Makes commits wait for the only standby from now on.
    pub fn replicate(&self) {
        self.set("ALTER SYSTEM SET synchronous_standby_names = '*'");
        let until = Instant::now() + TIMEOUT;
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        while self.sql_on("postgres", sql).expect("asked").trim() != "1" {
            assert!(Instant::now() < until, "the standby is not synchronous: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Lets commits wait for no standby.
    pub fn stop_replicating(&self) {
        self.set("ALTER SYSTEM RESET synchronous_standby_names");
    }

    fn set(&self, sql: &str) {
        for sql in [sql, "SELECT pg_reload_conf()"] {
            self.sql_on("postgres", sql).expect("set");
        }
    }

    /// Makes a standby the primary, and waits until it accepts writes.
    pub fn promote(&self) {
        let promoted = self.sql_on("postgres", "SELECT pg_promote()").expect("promoted");
        assert_eq!(promoted.trim(), "t", "{}", self.log());
    }

    /// Restarts it on a new time line, as after a restore to a point in time.
    pub fn begin_time_line(&mut self) {
        self.stop(nix::sys::signal::Signal::SIGINT);
        let path = self.data.join("standby.signal");
        std::fs::write(&path, "").expect("written");
        give_to_server(&path);
        self.run();
        self.promote();
    }

    /// Starts the server's process, unless it runs, and waits until it accepts connections.
    pub fn run(&mut self) {
        let until = Instant::now() + TIMEOUT;
        loop {
            // It does not start while processes of a killed server still run.
            let ended =
                self.process.as_mut().is_none_or(|it| it.try_wait().is_ok_and(|it| it.is_some()));
            if ended {
                self.process = Some(self.spawn());
            }
            if self.sql_on("postgres", "SELECT 1").is_ok_and(|out| out.trim() == "1") {
                break;
            }
            assert!(Instant::now() < until, "the server does not answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        if self.ahead != 0 {
            self.set_clock(self.ahead);
        }
    }

    fn spawn(&self) -> Child {
        let log = std::fs::File::create(self.dir.path().join("log")).expect("a log");
        let mut command = Command::new(programs().join("postgres"));
        command.args(["-p", &self.port.to_string(), "-D"]).arg(&self.data);
        command.current_dir(self.dir.path()).stderr(log).stdout(Stdio::null());
        as_other_user(&mut command).spawn().expect("postgres")
    }

    /// What the server has logged since it started.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Runs SQL with psql, and returns what it prints.
    ///
    /// # Errors
    /// What psql says.
    pub fn sql_on(&self, database: &str, sql: &str) -> Result<String, String> {
        psql(self.port, database, sql)
    }

    /// Copies a schema to an empty database with `pg_dump` and `pg_restore`, as of now.
    pub fn dump_and_restore(&self, schema: &str, from: &str, to: &str) {
        let dump = self.dir.path().join(format!("{from}.dump"));
        let port = self.port.to_string();
        let run = |program: &str, database: &str, more: &[&std::ffi::OsStr]| {
            let mut command = Command::new(programs().join(program));
            command.args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", database]);
            let out = command.args(more).output().expect(program);
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        };
        let file = dump.as_os_str();
        run(
            "pg_dump",
            from,
            &["-Fc".as_ref(), "-n".as_ref(), schema.as_ref(), "-f".as_ref(), file],
        );
        run("pg_restore", to, &["--exit-on-error".as_ref(), file]);
    }

    /// Creates an empty database; returns its name.
    #[must_use]
    pub fn database(&self) -> String {
        let name = format!("t{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql_on("postgres", &format!("CREATE DATABASE {name}")).expect("created");
        name
    }

    /// The connection string of a database.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname={database}", self.port)
    }

    /// Asks this user for a password from now on.
    pub fn require_password(&self, user: &str) {
        let path = self.data.join("pg_hba.conf");
        let rules = std::fs::read_to_string(&path).expect("the rules");
        let rule = format!("host all {user} all scram-sha-256\n");
        std::fs::write(&path, rule + &rules).expect("written");
        self.sql_on("postgres", "SELECT pg_reload_conf()").expect("read");
    }

    /// The port on which it listens, at 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets the server's clock jump: it is ahead by this many seconds from now on, also after a restart.
    pub fn set_clock(&mut self, ahead: i64) {
        self.ahead = ahead;
        clock::set_ahead(self.process.as_ref().expect("a running server").id(), ahead);
    }

    /// Kills the server's processes at once, or stops it like an operator.
    pub fn stop(&mut self, signal: nix::sys::signal::Signal) {
        let Some(mut process) = self.process.take() else { return };
        let pid = nix::unistd::Pid::from_raw(process.id().try_into().expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("signalled");
        process.wait().expect("it ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fast shutdown; its children end with it.
        if let Some(mut process) = self.process.take() {
            let pid = nix::unistd::Pid::from_raw(process.id().try_into().unwrap_or_default());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGQUIT);
            let _ = process.wait();
        }
        if std::thread::panicking() {
            let mut text = String::new();
            if let Ok(mut log) = std::fs::File::open(self.dir.path().join("log")) {
                let _ = log.read_to_string(&mut text);
            }
            eprintln!("the server's log:\n{text}");
        }
    }
}
