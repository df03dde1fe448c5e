//! Prometheus for tests, from Debian's package: its own directory and port. It ends with the value.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::python::on_path;

/// Timeout for its start.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running Prometheus.
#[derive(Debug)]
pub struct Prometheus {
    process: Child,
    port: u16,
    dir: TempDir,
}

/// One of Prometheus' programs.
fn program(name: &str) -> PathBuf {
    crate::find_or_install("prometheus", &["prometheus"], || {
        on_path("prometheus").and(on_path("promtool")).and_then(|_| on_path(name))
    })
}

/// Runs promtool in a directory, and returns whether it succeeded and what it said.
#[must_use]
pub fn promtool(dir: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program("promtool"))
        .current_dir(dir)
        .args(arguments)
        .output()
        .expect("promtool");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

impl Prometheus {
    /// Starts it with this configuration, and these files beside it.
    #[must_use]
    pub fn start(config: &str, files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files.iter().chain(&[("prometheus.yml", config)]) {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        let port = crate::free_port();
        let log = std::fs::File::create(dir.path().join("log")).expect("a log");
        let process = Command::new(program("prometheus"))
            .current_dir(dir.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus");
        let started = Self { process, port, dir };
        let began = Instant::now();
        while started.request("/-/ready").is_none_or(|(status, _)| status != 200) {
            assert!(began.elapsed() < TIMEOUT, "{}", started.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        started
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The status and the body of its answer; `None` if it does not answer.
    fn request(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    fn data(&self, path: &str) -> Value {
        let (status, body) = self.request(path).unwrap_or_else(|| panic!("{path}: {}", self.log()));
        assert_eq!(status, 200, "{path}: {body}");
        let mut document: Value = serde_json::from_str(&body).expect("JSON");
        document["data"].take()
    }

    /// The series that an expression yields now: their labels and values.
    #[must_use]
    pub fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let escaped: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let mut data = self.data(&format!("/api/v1/query?query={escaped}"));
        let Value::Array(series) = data["result"].take() else { return Vec::new() };
        let series = series.into_iter().map(|mut one| {
            let value = one["value"][1].as_str().and_then(|it| it.parse().ok());
            (one["metric"].take(), value.expect("a number"))
        });
        series.collect()
    }

    /// The alerts that fire or are about to: their names, states and instances.
    #[must_use]
    pub fn alerts(&self) -> Vec<(String, String, String)> {
        let mut data = self.data("/api/v1/alerts");
        let Value::Array(alerts) = data["alerts"].take() else { return Vec::new() };
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let alerts = alerts.iter().map(|alert| {
            let labels = &alert["labels"];
            (text(&labels["alertname"]), text(&alert["state"]), text(&labels["instance"]))
        });
        alerts.collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
