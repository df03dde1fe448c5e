//! A node's directory: created by `ostraca init`, modified by the test, removed at the end.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, Profile, SessionId};
use tempfile::TempDir;

use crate::artifacts;

/// The directory of a node. Its processes must have ended before it is dropped.
#[derive(Debug)]
pub struct NodeDir {
    temporary: TempDir,
    dir: PathBuf,
}

impl NodeDir {
    /// Creates a directory with `ostraca init`, for a port that the system chooses.
    ///
    /// # Errors
    /// The program's error.
    pub fn init(name: &str) -> Result<Self> {
        Self::init_as(name, &[], |_| {})
    }

    /// Like [`NodeDir::init`], with more arguments and a change to the command (its environment).
    ///
    /// # Errors
    /// The program's error.
    pub fn init_as(name: &str, more: &[&str], change: impl FnOnce(&mut Command)) -> Result<Self> {
        Self::make(name, &[&["--listen", "127.0.0.1:0"], more].concat(), change)
    }

    /// Runs `ostraca init` with these arguments after the directory.
    ///
    /// # Errors
    /// The program's error.
    pub fn make(name: &str, more: &[&str], change: impl FnOnce(&mut Command)) -> Result<Self> {
        let temporary =
            tempfile::Builder::new().prefix(name).tempdir_in(artifacts::scratch("homes")?)?;
        let dir = temporary.path().join("node");
        let mut init = Command::new(artifacts::ostraca()?);
        init.arg("init").arg(&dir).args(more);
        change(&mut init);
        let output = init.output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`ostraca init` failed ({}): {stderr}", output.status);
        Ok(Self { temporary, dir })
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Keeps the directory on disk, and returns its parent's path, for the user to remove.
    #[must_use]
    pub fn keep(self) -> PathBuf {
        self.temporary.keep()
    }

    /// The directory of the node's store.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// The node's configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir.join("ostraca.toml")
    }

    /// Overrides settings of the configuration with this TOML.
    ///
    /// # Errors
    /// If the settings or the configuration are not TOML, or the file cannot be written.
    pub fn set(&self, settings: &str) -> Result<()> {
        let path = self.config();
        let mut config: toml::Table = std::fs::read_to_string(&path)?.parse()?;
        lay_over(&mut config, settings.parse().context("parse the settings")?);
        std::fs::write(&path, toml::to_string(&config)?)
            .with_context(|| format!("write {}", path.display()))
    }

    /// The profile that `init` created, for the node at this address.
    ///
    /// # Errors
    /// If there is none.
    pub fn profile(&self, address: SocketAddr) -> Result<Profile> {
        let mut profile = Profile::load(&self.dir.join("profile.toml"))?;
        profile.addresses = vec![address.to_string()];
        Ok(profile)
    }

    /// Runs the program with these arguments, as this cluster's administrator.
    ///
    /// # Errors
    /// If it cannot be run. A failure of the command itself is in the output.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Result<Output> {
        let mut command = Command::new(artifacts::ostraca()?);
        command.arg("--profile").arg(self.dir.join("profile.toml")).args(arguments);
        // Tests may run in a pod.
        command.env_remove("KUBERNETES_SERVICE_HOST");
        Ok(command.output()?)
    }
}

fn lay_over(under: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(toml::Value::Table(under)), toml::Value::Table(over)) => lay_over(under, over),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

/// Deploys an example as shipped.
///
/// # Errors
/// The node's error.
pub async fn deploy_example(client: &Client, example: &str) -> Result<u64> {
    let deployed =
        client.deploy(&artifacts::manifest(example)?, artifacts::component(example)?, None).await?;
    Ok(deployed.revision)
}

/// Deploys one of the tests' own guests under its name; `more` is appended to the manifest's first lines.
///
/// # Errors
/// The node's error.
pub async fn deploy_guest(client: &Client, guest: &str, more: &str) -> Result<u64> {
    let manifest = format!("type = \"{guest}\"\ncomponent = \"{guest}.wasm\"\n{more}");
    Ok(client.deploy(&manifest, artifacts::component(guest)?, None).await?.revision)
}

/// A session id made from a number, so that a failed run's messages can be found in its logs.
#[must_use]
pub fn session_id(number: u64) -> SessionId {
    let mut id = [0x5e; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    SessionId(id)
}
