//! A pgbouncer in front of a PostgreSQL server, from Debian's package. It ends with the value.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::postgres;

/// Timeout of the start.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running pooler.
#[derive(Debug)]
pub struct Pooler {
    process: Child,
    port: u16,
    _dir: TempDir,
}

fn find() -> Option<PathBuf> {
    let places = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];
    places.into_iter().map(PathBuf::from).find(|path| path.exists())
}

impl Pooler {
    /// Starts a pooler in front of this server, which lends connections for each transaction. It keeps few of them to
    /// each database, so that the stores of a suite do not use up all that the server accepts.
    #[must_use]
    pub fn start(server: &postgres::Server) -> Self {
        let program = crate::find_or_install("pgbouncer", &["pgbouncer"], find);
        let (dir, port) = (tempfile::tempdir().expect("a directory"), crate::free_port());
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = 5\nserver_idle_timeout = 2\n",
            server = server.port(),
        );
        let path = dir.path().join("pgbouncer.ini");
        std::fs::write(&path, settings).expect("written");
        postgres::give_to_server(dir.path());
        postgres::give_to_server(&path);
        let log = std::fs::File::create(dir.path().join("log")).expect("a log");
        let mut command = Command::new(program);
        command.arg(&path).current_dir(dir.path()).stderr(log).stdout(Stdio::null());
        let process = postgres::as_other_user(&mut command).spawn().expect("pgbouncer");
        let until = Instant::now() + TIMEOUT;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "pgbouncer does not answer: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { process, port, _dir: dir }
    }

    /// The connection string of a database.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname={database}", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
