//! Scripts for Node.js that drive Chromium, from Debian's packages; what they need from npm is installed once.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::python::on_path;
use crate::{find_or_install, installing};

/// The oldest Node.js that the scripts run on.
const NODE: u32 = 20;

/// Chromium's program.
#[must_use]
pub fn chromium() -> PathBuf {
    find_or_install("chromium", &["chromium"], || on_path("chromium"))
}

/// The programs of Node.js and npm.
#[must_use]
pub fn node_and_npm() -> (PathBuf, PathBuf) {
    let found = find_or_install("Node.js and npm", &["nodejs", "npm"], || {
        on_path("node").zip(on_path("npm"))
    });
    let output = Command::new(&found.0).arg("--version").output().expect("node");
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    let major = version.trim_start_matches('v').split('.').next().and_then(|it| it.parse().ok());
    assert!(
        major.is_some_and(|major: u32| major >= NODE),
        "Node.js {version} is older than {NODE}"
    );
    found
}

/// Copies a folder to `dir`, and installs there what its `package-lock.json` names.
pub fn install_from_npm(folder: &Path, dir: &Path) {
    let (_, npm) = node_and_npm();
    let _one = installing();
    copy(folder, dir);
    let lock = std::fs::read(folder.join("package-lock.json")).expect("a lock file");
    // Written last.
    let installed = dir.join("installed-lock.json");
    if std::fs::read(&installed).is_ok_and(|known| known == lock) {
        return;
    }
    let arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
    let output = Command::new(npm).current_dir(dir).args(arguments).output().expect("npm");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(
        output.status.success(),
        "tests need packages of npm: cd {} && npm ci\n{said}",
        dir.display()
    );
    std::fs::write(installed, lock).expect("written");
}

/// Copies files and folders, but for what was installed or made there by hand.
fn copy(folder: &Path, dir: &Path) {
    std::fs::create_dir_all(dir).expect("a directory");
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        match path.is_dir() {
            true if name == "node_modules" || name == "dist" => {}
            true => copy(&path, &dir.join(name)),
            false => {
                let to = dir.join(name);
                let text = std::fs::read(&path).expect("a file");
                // Another test may be compiling it.
                if std::fs::read(&to).is_ok_and(|copied| copied == text) {
                    continue;
                }
                std::fs::write(to, text).expect("copied");
            }
        }
    }
}

/// A running script. It writes lines, and waits for an answer to those that begin with `do `. It ends with the value.
#[derive(Debug)]
pub struct Script {
    process: Child,
    answers: ChildStdin,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Script {
    /// Starts a script of an installed folder.
    #[must_use]
    pub fn start<V: AsRef<OsStr>>(dir: &Path, name: &str, environment: &[(&str, V)]) -> Self {
        let (node, _) = node_and_npm();
        let mut command = Command::new(node);
        command.current_dir(dir).arg(name).stdin(Stdio::piped()).stdout(Stdio::piped());
        for (name, value) in environment {
            command.env(name, value);
        }
        let mut process = command.spawn().expect("node");
        let answers = process.stdin.take().expect("a pipe");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        Self { process, answers, lines }
    }

    /// What the script asks for next; `None` if it has ended well. Other lines are printed.
    ///
    /// # Panics
    /// If the script has failed.
    pub fn next_wish(&mut self) -> Option<String> {
        for line in self.lines.by_ref() {
            let line = line.expect("a line");
            match line.strip_prefix("do ") {
                Some(wish) => return Some(wish.to_owned()),
                None => eprintln!("  {line}"),
            }
        }
        let status = self.process.wait().expect("it has ended");
        assert!(status.success(), "the script has failed: {status}");
        None
    }

    /// Says that it was done.
    pub fn done(&mut self) {
        writeln!(self.answers).expect("the script waits");
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // It may have ended already. Chromium ends with its driver.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
