//! A node's configuration, `ostraca.toml`.
//!
//! The embedded `default.toml` documents every setting with its default, its unit and its cost in memory;
//! a test compares it with the code. Three structures are easy to confuse: the file as written (parts in
//! `file`), this [`Config`] with paths resolved, and each library's settings, which the methods here derive
//! from it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_codes::codes;
use ostraca_core::assign::AllocationStrategy;
use ostraca_core::rows::Roles;
use ostraca_secrets::SecretKeys;
use ostraca_wire::identity::{self, CertificateChain, Identity, IdentityError, TrustRoot, files};
use zeroize::Zeroizing;

pub use check::{DEFAULT_SHARDS, MAX_MIN_HOSTS, MAX_SHARDS};
pub use cluster_settings::ClusterSettings;
pub use health_check::HealthCheckSettings;
pub use kubernetes::PodHealthSettings;
pub use node_sections::{ControlInboxLimits, LoadSettings, Role};
pub use rows_store::RowsStore;
pub use workers::WorkerSettings;

pub use crate::error::Error;
use crate::manifest::Ceilings;
use crate::user_file::SourceText;
pub use crate::user_file::UserFileError as ConfigError;

mod check;
mod cluster_settings;
mod etcd;
mod file;
mod guests;
mod health_check;
mod http;
mod kubernetes;
mod metrics;
mod node_sections;
mod numbers;
mod partition;
mod pool_limits;
mod postgres;
mod renamed;
mod rows_store;
#[cfg(test)]
mod tests;
mod traces;
mod workers;

use file::{ConfigFile, IdentityFiles};

/// The directory in the data directory with what the cluster has given to the node.
const SAVED: &str = "identity";
/// The certificates of the authorities there.
const AUTHORITIES: &str = "ca.pem";
/// The node's certificate there.
const CERTIFICATE: &str = "node.pem";

/// The longest configuration that is accepted, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A checked configuration, with every default filled in and paths resolved.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name; its certificate must carry it.
    pub node: String,
    /// The directory of all the node's files. Default: the configuration's own directory.
    pub data: PathBuf,
    /// The UDP address that clients connect to. Default `127.0.0.1:7411`.
    pub listen: SocketAddr,
    /// `host:port` addresses that are announced to clients. Default: none, which announces the listening address.
    pub advertise: Vec<String>,
    /// `host:port` addresses of nodes of the cluster to join. Empty if and only if the node has the role
    /// `store`, or the cluster's rows are outside the nodes.
    pub join: Vec<String>,
    /// The shard count that the pool must have when this node joins. Default: `None`, which accepts any.
    pub expected_shards: Option<u32>,
    /// The hash that the pool must have when this node joins. Default: `None`, which accepts any.
    pub expected_hash: Option<String>,
    /// The namespace of the node's entities. Default `default`, the only one of this release.
    pub namespace: String,
    /// Number of threads that run guests. Default 0: one per processor.
    pub workers: usize,
    /// How long a lease lasts without a renewal (R7, R8). Default 3 s.
    pub lease: Duration,
    /// How often the lease is renewed. Default 750 ms.
    pub renew_interval: Duration,
    /// A directory in which every shard machine's events and actions are recorded, for replay. Default none.
    pub recording_dir: Option<PathBuf>,
    file: ConfigFile,
    /// Which cluster settings the file sets explicitly.
    explicit_settings: cluster_settings::ExplicitSettings,
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] with `invalid-config`; marks the line if it is known.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_with_join(path, &[])
    }

    /// Reads the configuration file of a node that joins a cluster at the addresses `join`, which replace the
    /// file's `join`. If `join` is empty, this is [`Config::load`].
    ///
    /// # Errors
    /// Those of [`Config::load`].
    pub fn load_with_join(path: &Path, join: &[String]) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let unreadable = |error| ConfigError::unreadable(codes::INVALID_CONFIG, &name, &error);
        let length = std::fs::metadata(path).map_err(unreadable)?.len();
        if length > MAX_CONFIG_BYTES {
            let why = format!("{length} bytes exceed the limit of {MAX_CONFIG_BYTES}");
            return Err(unreadable(std::io::Error::other(why)));
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        Self::read(&text, &name, join)
    }

    /// Parses a configuration. `name` is the file's path: errors show it, and relative paths in the text are
    /// resolved against its directory.
    ///
    /// # Errors
    /// Those of [`Config::load`].
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        Self::read(text, name, &[])
    }

    fn read(text: &str, name: &str, join: &[String]) -> Result<Self, ConfigError> {
        let input =
            SourceText { code: codes::INVALID_CONFIG, name, text, renamed: renamed::RENAMED };
        let mut file: ConfigFile = input.parse()?;
        if !join.is_empty() {
            file.join = join.to_vec();
        }
        let names_roles = text.parse::<toml::Table>().is_ok_and(|keys| keys.contains_key("roles"));
        if file.has_database() && !names_roles {
            file.roles.retain(|role| *role != Role::Store);
        }
        check::file(&input, &file)?;
        let base = Path::new(name).parent().unwrap_or(Path::new(""));
        // Drops `.` components, since the path is shown in errors and in `ostraca status`.
        let data: PathBuf = base.join(&file.data).components().collect();
        Ok(Self {
            node: file.node.clone(),
            listen: file.listen,
            advertise: file.advertise.clone(),
            join: file.join.clone(),
            expected_shards: file.cluster.shards,
            expected_hash: file.cluster.hash.clone(),
            namespace: file.namespace.clone(),
            workers: file.workers,
            lease: file.lease,
            renew_interval: file.renew_interval,
            recording_dir: file.recording_dir.as_ref().map(|path| data.join(path)),
            explicit_settings: cluster_settings::ExplicitSettings::from_toml(text),
            data,
            file,
        })
    }

    /// The default configuration, with a comment on each setting.
    #[must_use]
    pub fn default_toml() -> &'static str {
        include_str!("default.toml")
    }

    /// The whole configuration with its defaults filled in, as TOML. Cluster settings that the file does not
    /// set are written as comments.
    #[must_use]
    pub fn effective_toml(&self) -> String {
        // Serialization cannot fail: these are plain values in plain tables.
        self.explicit_settings.comment_others(&toml::to_string(&self.file).unwrap_or_default())
    }

    /// The store's directory.
    #[must_use]
    pub fn store_dir(&self) -> PathBuf {
        self.data.join("store")
    }

    /// Reads the certificates of the cluster's authorities and the node's own certificate and key: those that
    /// `[identity]` names, or newer ones that the node has got from the cluster ([`Config::save_identity`]).
    ///
    /// # Errors
    /// [`Error::Identity`] names the file; [`Error::IdentityMismatch`] names the certificate's actual subject.
    pub fn load_identity(&self) -> Result<(TrustRoot, Identity), Error> {
        let files = self.identity_files();
        let trust = TrustRoot::from_pem(&self.load_authority()?)?;
        let identity = Identity::load(&files.certificate, &files.key)?;
        let identity = self.newer_identity(identity)?;
        // An expired certificate is refused here, because no other node checks the certificate of the first node.
        // Otherwise, every client would refuse the node.
        let now = std::time::SystemTime::now();
        trust.check_time(now)?;
        identity.check_time(now)?;
        let found = identity.principal();
        // A joining node with another cluster's authority is refused by the other side. A node that joins no other
        // must check its authority itself.
        let foreign =
            (self.roles().store || self.has_rows_outside()) && found.cluster != trust.cluster;
        if found.kind == identity::PrincipalKind::Node && found.name == self.node && !foreign {
            return Ok((trust, identity));
        }
        let of = if foreign { format!(" of cluster {}", found.cluster) } else { String::new() };
        Err(Error::IdentityMismatch { node: self.node.clone(), actual: format!("{found}{of}") })
    }

    /// Reads the keys for secrets from the file that `identity.secret-keys` names; `None` if there is no such file.
    ///
    /// # Errors
    /// [`Error::Identity`] names the file.
    pub fn load_secret_keys(&self) -> Result<Option<SecretKeys>, Error> {
        let path = self.identity_files().secret_keys;
        let text = match files::read(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(IdentityError::File { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let unusable = |error| IdentityError::Key(format!("{}: {error}", path.display()));
        Ok(Some(SecretKeys::parse(&text).map_err(unusable)?))
    }

    /// Reads the certificates of the cluster's authorities, in PEM.
    ///
    /// # Errors
    /// [`Error::Identity`] names the file.
    pub fn load_authority(&self) -> Result<String, Error> {
        let own = files::read(&self.identity_files().ca)?;
        let Some(saved) = self.saved(AUTHORITIES)? else { return Ok(own) };
        let (trust, newer) = (TrustRoot::from_pem(&own)?, TrustRoot::from_pem(&saved)?);
        let is_newer = trust.cluster == newer.cluster && newer.newest()? >= trust.newest()?;
        Ok(if is_newer { saved } else { own })
    }

    /// Keeps what the cluster has given to the node, for its next start: the certificates of the authorities, and the
    /// node's own one for the same key, in PEM. Files that are written later by hand count again.
    ///
    /// # Errors
    /// [`Error::Identity`] names the file.
    pub fn save_identity(&self, authorities: &str, certificate: &str) -> Result<(), Error> {
        let directory = self.data.join(SAVED);
        std::fs::create_dir_all(&directory).map_err(|source| IdentityError::File {
            action: "write",
            path: directory.display().to_string(),
            source,
        })?;
        files::write(&directory.join(AUTHORITIES), authorities)?;
        files::write(&directory.join(CERTIFICATE), certificate)?;
        Ok(())
    }

    /// The identity with the certificate that the cluster has given to the node, if that is not older.
    fn newer_identity(&self, identity: Identity) -> Result<Identity, Error> {
        let Some(saved) = self.saved(CERTIFICATE)? else { return Ok(identity) };
        let (own, newer) = (identity.certificates()?, CertificateChain::from_pem(&saved)?);
        let is_newer = own.principal() == newer.principal()
            && own.public_key() == newer.public_key()
            && newer.not_before() >= own.not_before();
        Ok(if is_newer { Identity::from_pem(&saved, identity.key_pem())? } else { identity })
    }

    /// The files of the section `identity`.
    fn identity_files(&self) -> IdentityFiles {
        self.file.identity.in_directory(&self.data)
    }

    fn saved(&self, name: &str) -> Result<Option<String>, Error> {
        let path = self.data.join(SAVED).join(name);
        Ok(if path.exists() { Some(files::read(&path)?) } else { None })
    }

    /// Gives the node an HTTP gateway at this loopback address, unless the configuration has one.
    pub fn set_default_http_listen(&mut self, listen: SocketAddr) {
        self.file.http.listen.get_or_insert(listen);
    }

    /// Settings of the HTTP gateway; `None` if the node has none.
    #[must_use]
    pub fn http_settings(&self) -> Option<ostraca_http::HttpSettings> {
        self.file.http.settings(&self.data)
    }

    /// The address at which the node serves its metrics; `None` if it does not.
    #[must_use]
    pub fn metrics_address(&self) -> Option<std::net::SocketAddr> {
        self.file.metrics.listen
    }

    /// Settings of traces; `None` if the node sends none.
    #[must_use]
    pub fn trace_settings(&self) -> Option<ostraca_trace::TraceSettings> {
        self.file.traces.settings()
    }

    /// Maximum number of methods that have metrics of their own.
    #[must_use]
    pub fn max_metric_methods(&self) -> usize {
        self.file.metrics.max_methods as usize
    }

    /// Limits of the network endpoint.
    #[must_use]
    pub fn wire_limits(&self) -> ostraca_wire::Limits {
        self.file.network.limits(self.file.guests.component_limit, &self.file.peers)
    }

    /// How long a deploy waits for the live hosts to compile the component.
    #[must_use]
    pub fn deploy_wait_timeout(&self) -> Duration {
        self.file.guests.deploy_wait_timeout
    }

    /// Settings of the WebAssembly runtime. Compiled components are kept in `cache` of the data directory.
    #[must_use]
    pub fn wasm_settings(&self) -> ostraca_wasm::RuntimeSettings {
        let ConfigFile { guests, components, compiler, outgoing_http, .. } = &self.file;
        let outgoing_http = outgoing_http.settings(&self.data);
        guests.settings(self.data.join("cache"), components, compiler, outgoing_http)
    }

    /// Maximum memory of all live instances in bytes (`guests.max-live-memory`).
    #[must_use]
    pub fn max_live_memory(&self) -> u64 {
        self.file.guests.max_live_memory
    }

    /// Upper bounds for the limits that a manifest may set.
    #[must_use]
    pub fn ceilings(&self) -> Ceilings {
        self.file.guests.ceilings()
    }

    /// Settings of the store. Not the configuration but the authority's certificate says which cluster the store must
    /// belong to: set `cluster` from [`Config::load_identity`].
    #[must_use]
    pub fn store_options(&self) -> ostraca_store_sled::Options {
        self.file.store.options(&self.data)
    }

    /// Settings of the stores in PostgreSQL; `None` if they are not there. As for [`Config::store_options`], `cluster` is
    /// to be set.
    #[must_use]
    pub fn postgres_options(&self) -> Option<ostraca_store_postgres::Options> {
        self.file.postgres_options(&self.data)
    }

    /// Settings of the further databases that have state of entities, in any order. As for [`Config::store_options`],
    /// `cluster` is to be set.
    #[must_use]
    pub fn further_databases(&self) -> Vec<ostraca_store_postgres::Options> {
        self.file.further_databases(&self.data)
    }

    /// The store in etcd or Kubernetes that has the cluster's rows; `None` if they are where the state is. As for
    /// [`Config::store_options`], `cluster` is to be set.
    #[must_use]
    pub fn rows_store(&self) -> Option<RowsStore> {
        self.file.rows_store(&self.data)
    }

    /// How nodes find out that a process has ended (S7); `None` if they do not, or if the program that embeds the node
    /// has a check of its own.
    #[must_use]
    pub fn health_check(&self) -> Option<HealthCheckSettings> {
        self.file.health_check.settings(&self.data, || match self.rows_store()? {
            RowsStore::Kubernetes(options) => Some(self.file.kubernetes.health(options)),
            RowsStore::Etcd(_) => None,
        })
    }

    /// How long a health check may take.
    #[must_use]
    pub fn health_check_timeout(&self) -> Duration {
        self.file.health_check.timeout
    }

    /// Says that the program that embeds the node has a health check of its own, which replaces the configured one.
    pub fn set_supplied_health_check(&mut self) {
        self.file.health_check.is_supplied = true;
    }

    /// Whether the cluster's rows are in etcd, Kubernetes or PostgreSQL, rather than in the node with the role `store`.
    #[must_use]
    pub fn has_rows_outside(&self) -> bool {
        self.file.place_of_rows().is_some()
    }

    /// The node's roles in its cluster.
    #[must_use]
    pub fn roles(&self) -> Roles {
        Role::to_roles(&self.file.roles)
    }

    /// What follows `host.` in the node's other roles (K39).
    #[must_use]
    pub fn pool_roles(&self) -> Vec<String> {
        Role::to_pool_roles(&self.file.roles)
    }

    /// Whether the node owns shards of any pool.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.roles().host || !self.pool_roles().is_empty()
    }

    /// Settings of the node's state machine.
    #[must_use]
    pub fn node_settings(&self) -> ostraca_core::node::Settings {
        ostraca_core::node::Settings {
            renew_interval: numbers::millis(self.renew_interval),
            health_check_interval: self
                .file
                .health_check
                .is_enabled()
                .then(|| numbers::millis(self.file.health_check.interval)),
            ..self.file.node_settings()
        }
    }

    /// The default and the longest timeout of messages.
    #[must_use]
    pub fn timeout_limits(&self) -> ostraca_wire::envelope::TimeoutLimits {
        self.file.gateway.timeout_limits()
    }

    /// Maximum number of channels that the node follows for its subscribers.
    #[must_use]
    pub fn max_channel_feeds(&self) -> usize {
        self.file.gateway.max_channel_feeds as usize
    }

    /// The accepted range of the times with which clients stamp messages: a copy may be sent until the longest timeout
    /// has passed.
    pub fn utc_limits(&self) -> ostraca_wire::envelope::UtcLimits {
        let future_ms = self.shard_settings().max_clock_skew;
        let past_ms = self.timeout_limits().max_ms.saturating_add(future_ms);
        ostraca_wire::envelope::UtcLimits { past_ms, future_ms }
    }

    /// Settings of the message router.
    #[must_use]
    pub fn route_settings(&self) -> ostraca_core::route::Settings {
        self.file.gateway.settings()
    }

    /// Limits of the control inbox.
    #[must_use]
    pub fn control_inbox_limits(&self) -> ControlInboxLimits {
        self.file.peers.control_inbox_limits()
    }

    /// The strategy with which this node spreads shards over the hosts while it is the manager.
    #[must_use]
    pub fn strategy(&self) -> Box<dyn AllocationStrategy> {
        self.file.rebalance.strategy()
    }

    /// Maximum number of pinned shards in the cluster, for requests that this node answers.
    #[must_use]
    pub fn max_pins(&self) -> usize {
        self.file.rebalance.max_pins as usize
    }

    /// How much load this node should have, in relation to other hosts.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.file.weight
    }

    /// How this node measures the loads of its shards.
    #[must_use]
    pub fn load_settings(&self) -> LoadSettings {
        self.file.rebalance.load_settings()
    }

    /// How long a call to another node's store may take before its link is closed.
    #[must_use]
    pub fn store_call_timeout(&self) -> Duration {
        self.file.store.call_timeout
    }

    /// Settings of the shard machines.
    #[must_use]
    pub fn shard_settings(&self) -> ostraca_core::shard::Settings {
        self.file.entities.settings()
    }
}
