//! Creates a cluster's first node: an authority, certificates, a configuration and an empty store. Also creates
//! joining nodes: a certificate and a configuration, without a store.
//!
//! An empty directory never becomes a node automatically (R5): nodes are created only here, and nothing is overwritten.
//! The configuration is written last, so that an interrupted attempt cannot be mistaken for a node.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ostraca_ca::Ca;
use ostraca_ca::secrets::{copy_secret_keys, create_secret_key};
use ostraca_catalog::bootstrap;
use ostraca_config::Config;
use ostraca_config::config::{ClusterSettings, Role};
use ostraca_core::ids::ClusterId;
use ostraca_store::{ClusterStore, EntityStore};
use ostraca_store_postgres::PostgresStore;
use ostraca_store_sled::{Options, SledStore};
use ostraca_wire::identity::Identity;

use crate::blocking::block_on_own_thread;
use crate::error::NodeError;
use crate::stores::rows_store;
pub use ostraca_config::config::{DEFAULT_SHARDS, MAX_SHARDS};

/// A PostgreSQL database for the stores of a cluster: what is written to the section `postgres` of a configuration.
#[derive(Clone, Debug, Default)]
pub struct PostgresSettings {
    /// The connection string.
    pub url: String,
    /// A file with the password.
    pub password_file: Option<PathBuf>,
    /// Whether the connections are encrypted and the server's certificate is checked. Must be set unless the database
    /// is on this machine.
    pub tls: Option<bool>,
    /// PEM file with the certificates of the authority of the server's certificate.
    pub ca_file: Option<PathBuf>,
}

impl PostgresSettings {
    /// The section `postgres` of a configuration, as TOML.
    #[must_use]
    pub fn section(&self) -> String {
        let comment = "The database with the cluster's stores, the same for all nodes.";
        let mut section = Section::new(comment, "postgres");
        section.add("url", self.url.as_str());
        section.add_if("password-file", self.password_file.as_deref().map(shown));
        section.add_if("tls", self.tls.map(mode));
        section.add_if("ca-file", self.ca_file.as_deref().map(shown));
        section.0
    }
}

/// An etcd cluster for the cluster's rows: what is written to the section `etcd` of a configuration.
#[derive(Clone, Debug, Default)]
pub struct EtcdSettings {
    /// The members, each `HOST:PORT`.
    pub endpoints: Vec<String>,
    /// What all keys start with. `None`: the default.
    pub prefix: Option<String>,
    /// The user to log in as.
    pub user: Option<String>,
    /// A file with the user's password.
    pub password_file: Option<PathBuf>,
    /// Whether the connections are encrypted and the members' certificates are checked. Must be set unless all members
    /// are on this machine.
    pub tls: Option<bool>,
    /// PEM file with the certificates of the authority of the members' certificates.
    pub ca_file: Option<PathBuf>,
    /// PEM files with a certificate and its key, if etcd asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl EtcdSettings {
    fn text(&self) -> String {
        let mut section =
            Section::new("The etcd with the cluster's rows, the same for all nodes.", "etcd");
        section.add("endpoints", self.endpoints.clone());
        section.add_if("prefix", self.prefix.clone());
        section.add_if("user", self.user.clone());
        section.add_if("password-file", self.password_file.as_deref().map(shown));
        section.add_if("tls", self.tls.map(mode));
        section.add_if("ca-file", self.ca_file.as_deref().map(shown));
        let (certificate, key) = self.identity.clone().unzip();
        section.add_if("certificate-file", certificate.as_deref().map(shown));
        section.add_if("key-file", key.as_deref().map(shown));
        section.0
    }
}

/// A namespace of Kubernetes for the cluster's rows: what is written to the section `kubernetes` of a configuration.
#[derive(Clone, Debug, Default)]
pub struct KubernetesSettings {
    /// The API server, or `in-cluster` for the pod's.
    pub url: String,
    /// The namespace. `None`: the pod's, with `in-cluster` only.
    pub namespace: Option<String>,
    /// What the names of the leases start with. `None`: the default.
    pub name: Option<String>,
    /// A file with the bearer token. `None`: the service account's with `in-cluster`, otherwise none.
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificates of the authority of the API server's certificate.
    pub ca_file: Option<PathBuf>,
    /// PEM files with a certificate and its key, instead of a token.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl KubernetesSettings {
    fn text(&self) -> String {
        let comment = "Kubernetes has the cluster's rows, the same for all nodes.";
        let mut section = Section::new(comment, "kubernetes");
        section.add("url", self.url.as_str());
        section.add_if("namespace", self.namespace.clone());
        section.add_if("name", self.name.clone());
        section.add_if("token-file", self.token_file.as_deref().map(shown));
        section.add_if("ca-file", self.ca_file.as_deref().map(shown));
        let (certificate, key) = self.identity.clone().unzip();
        section.add_if("certificate-file", certificate.as_deref().map(shown));
        section.add_if("key-file", key.as_deref().map(shown));
        section.0
    }
}

/// Where the cluster's rows are, if they are in a store of their own.
#[derive(Clone, Debug)]
pub enum RowsSettings {
    /// In etcd.
    Etcd(EtcdSettings),
    /// In Kubernetes.
    Kubernetes(KubernetesSettings),
}

impl RowsSettings {
    fn text(&self) -> String {
        match self {
            Self::Etcd(settings) => settings.text(),
            Self::Kubernetes(settings) => settings.text(),
        }
    }
}

/// A section of a configuration as it is written.
struct Section(String);

impl Section {
    fn new(comment: &str, name: &str) -> Self {
        Self(format!("\n# {comment}\n[{name}]\n"))
    }

    fn add(&mut self, key: &str, value: impl Into<toml::Value>) {
        self.0.push_str(&format!("{key} = {}\n", value.into()));
    }

    fn add_if(&mut self, key: &str, value: Option<String>) {
        value.into_iter().for_each(|value| self.add(key, value));
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// The mode of encryption.
fn mode(verifies: bool) -> String {
    if verifies { "verify" } else { "off" }.into()
}

/// Options of a new cluster's first node.
#[derive(Clone, Debug)]
pub struct InitOptions {
    /// The cluster's name, for display: 1 to 64 letters, digits, dots, dashes and underscores, starting with a letter
    /// or digit.
    pub cluster_name: String,
    /// The node's name, with the same restrictions.
    pub node: String,
    /// The UDP address to listen on.
    pub listen: SocketAddr,
    /// Number of shards of the pool `default`, 1 to 65,536. Fixed for the lifetime of the cluster.
    pub shards: u32,
    /// The cluster-wide settings that the guarantees depend on.
    pub settings: ClusterSettings,
    /// The database for the state of entities, and for the cluster's rows unless `rows` names another place. `None`: the
    /// node keeps them itself.
    pub postgres: Option<PostgresSettings>,
    /// The store for the cluster's rows. `None`: they are where the state is.
    pub rows: Option<RowsSettings>,
}

/// A newly created cluster.
#[derive(Debug)]
pub struct InitializedCluster {
    /// The new cluster's id.
    pub cluster: ClusterId,
    /// Path of the configuration.
    pub config: PathBuf,
    /// The authority's directory.
    pub ca: PathBuf,
    /// The authority's certificate in PEM form: a profile needs it in addition to the admin's identity.
    pub ca_pem: String,
    /// The identity `client/admin`, for a profile.
    pub admin: Identity,
}

/// Options of a node that joins.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The node's name: 1 to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit.
    pub node: String,
    /// The UDP address to listen on.
    pub listen: SocketAddr,
    /// The node's roles: any but [`Role::Store`].
    pub roles: Vec<Role>,
    /// `host:port` addresses of nodes of the cluster; at least one, or none if the cluster's rows are outside the
    /// nodes.
    pub join: Vec<String>,
    /// The database with the state of entities, if it is in one.
    pub postgres: Option<PostgresSettings>,
    /// The store with only the cluster's rows, if there is one.
    pub rows: Option<RowsSettings>,
    /// The directory of the cluster's authority, with its key.
    pub ca: PathBuf,
}

/// A newly created node that joins.
#[derive(Clone, Debug)]
pub struct JoinedNode {
    /// The cluster's id, from its authority.
    pub cluster: ClusterId,
    /// Path of the configuration.
    pub config: PathBuf,
}

/// Creates a node that joins a cluster, in a directory that is missing or empty: an identity issued by the cluster's
/// authority, and a configuration. The authority's key stays where it is. Blocks.
///
/// # Errors
/// [`NodeError::DirectoryNotEmpty`], [`NodeError::InvalidValue`], [`NodeError::Settings`], or an I/O error. A
/// failure partway leaves the files created so far, so the directory is then not empty.
pub fn join(dir: &Path, options: &JoinOptions) -> Result<JoinedNode, NodeError> {
    check_name("node", &options.node)?;
    let invalid = |text: &str| Err(NodeError::InvalidValue(text.into()));
    if options.roles.contains(&Role::Store) {
        return invalid("a joining node cannot have the role `store`: the cluster already has one");
    }
    if options.roles.is_empty() {
        return invalid("a node needs a role: `manager`, `host` or `gateway`");
    }
    match (options.postgres.is_some() || options.rows.is_some(), options.join.is_empty()) {
        (false, true) => {
            return invalid("a joining node needs the address of a node of the cluster");
        }
        (true, false) => {
            return invalid(
                "a node whose cluster's rows are outside the nodes joins no address: it finds the others there",
            );
        }
        _ => {}
    }
    // Checked before anything is created: a wrong directory is the most likely mistake.
    let ca = Ca::load(&options.ca)?;
    let config = dir.join("ostraca.toml");
    let text = join_text(options, ca.cluster());
    Config::parse(&text, &config.display().to_string())?;
    empty(dir)?;
    let ca_dir = dir.join("ca");
    create_dir(&ca_dir)?;
    write_new(&ca_dir.join("ca.pem"), ca.certificate_pem())?;
    copy_secret_keys(&options.ca, &ca_dir)?;
    ca.issue_node(&options.node, &names(options.listen))?.save(dir, "node")?;
    write_new(&config, &text)?;
    Ok(JoinedNode { cluster: ca.cluster(), config })
}

/// Creates a cluster of one node, in a directory that is missing or empty. Blocks.
///
/// # Errors
/// [`NodeError::DirectoryNotEmpty`], [`NodeError::InvalidValue`], or an I/O error. A failure partway leaves
/// the files created so far, so the directory is then not empty.
pub fn init(dir: &Path, options: &InitOptions) -> Result<InitializedCluster, NodeError> {
    check(options)?;
    let config = dir.join("ostraca.toml");
    let text = config_text(options);
    // A wrong address is found before anything is created.
    let parsed = Config::parse(&text, &config.display().to_string())?;
    empty(dir)?;
    let cluster = ClusterId(rand::random());
    let ca_dir = dir.join("ca");
    create_dir(&ca_dir)?;
    let ca = Ca::create(cluster)?;
    ca.save(&ca_dir)?;
    create_secret_key(&ca_dir)?;
    ca.issue_node(&options.node, &names(options.listen))?.save(dir, "node")?;
    let admin = ca.issue_client("admin")?;
    block_on_own_thread(create_stores(&parsed, options, cluster))?;
    write_new(&config, &text)?;
    Ok(InitializedCluster {
        cluster,
        config,
        ca: ca_dir,
        ca_pem: ca.certificate_pem().into(),
        admin,
    })
}

/// Creates the empty stores of a new cluster.
async fn create_stores(
    config: &Config,
    options: &InitOptions,
    cluster: ClusterId,
) -> Result<(), NodeError> {
    let (name, of_rows) = (&options.cluster_name, config.rows_store());
    if let Some(store) = &of_rows {
        // Before anything is created.
        rows_store::check_missing(store).await?;
    }
    let (state, mut rows): (u128, Arc<dyn ClusterStore>) = match config.postgres_options() {
        Some(database) => {
            let store = Arc::new(PostgresStore::create(database, cluster, name).await?);
            (EntityStore::identity(&*store).store_id, store)
        }
        None => {
            let sled = Options { cluster: Some(cluster), ..Options::default() };
            let store = Arc::new(SledStore::create(&config.store_dir(), &sled, cluster, name)?);
            (EntityStore::identity(&*store).store_id, store)
        }
    };
    if let Some(store) = of_rows {
        rows = rows_store::create(store, cluster, name).await?;
    }
    let InitOptions { shards, settings, .. } = options;
    Ok(bootstrap::initialize_cluster(&*rows, state, *shards, settings).await?)
}

fn check(options: &InitOptions) -> Result<(), NodeError> {
    check_name("cluster", &options.cluster_name)?;
    check_name("node", &options.node)?;
    if !(1..=MAX_SHARDS).contains(&options.shards) {
        return Err(NodeError::InvalidValue(format!(
            "the number of shards is {}, must be 1 to {MAX_SHARDS}",
            options.shards
        )));
    }
    Ok(())
}

fn check_name(what: &str, name: &str) -> Result<(), NodeError> {
    let good = (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if !good {
        return Err(NodeError::InvalidValue(format!(
            "the {what}'s name {name:?} is not allowed: 1 to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit"
        )));
    }
    Ok(())
}

/// Host names in a node's certificate, in addition to the node's name, for tools that check host names; Ostraca does
/// not.
fn names(listen: SocketAddr) -> Vec<String> {
    let mut names = vec!["localhost".to_owned()];
    if !listen.ip().is_unspecified() {
        names.push(listen.ip().to_string());
    }
    names
}

fn join_text(options: &JoinOptions, cluster: ClusterId) -> String {
    let list = |all: Vec<&str>| {
        all.iter().map(|one| toml::Value::from(*one).to_string()).collect::<Vec<_>>().join(", ")
    };
    let place = match options.join.is_empty() {
        true => sections(options.postgres.as_ref(), options.rows.as_ref()),
        false => format!(
            "\n# Nodes of the cluster; one that responds is enough.\njoin = [{}]\n",
            list(options.join.iter().map(String::as_str).collect())
        ),
    };
    let roles: Vec<_> = options.roles.iter().map(Role::to_string).collect();
    format!(
        "# A node that joins the cluster {cluster}. `ostraca config default` prints every setting with its default.\n\
         \n\
         # The node's name, as in its certificate.\n\
         node = \"{node}\"\n\
         \n\
         # The UDP address to listen on, for clients and other nodes.\n\
         listen = \"{listen}\"\n\
         \n\
         # Its roles in the cluster.\n\
         roles = [{roles}]\n\
         {place}",
        node = options.node,
        listen = options.listen,
        roles = list(roles.iter().map(String::as_str).collect()),
    )
}

fn config_text(options: &InitOptions) -> String {
    format!(
        "# A node of the cluster {cluster}. `ostraca config default` prints every setting with its default.\n\
         \n\
         # The node's name, as in its certificate.\n\
         node = \"{node}\"\n\
         \n\
         # The UDP address to listen on.\n\
         listen = \"{listen}\"\n{stores}",
        cluster = options.cluster_name,
        node = options.node,
        listen = options.listen,
        stores = sections(options.postgres.as_ref(), options.rows.as_ref()),
    )
}

/// The sections that say where the stores are, if they are outside the nodes.
fn sections(postgres: Option<&PostgresSettings>, rows: Option<&RowsSettings>) -> String {
    let postgres = postgres.map(PostgresSettings::section).unwrap_or_default();
    postgres + &rows.map(RowsSettings::text).unwrap_or_default()
}

/// Creates the directory if it is missing, and refuses one that is not empty.
fn empty(dir: &Path) -> Result<(), NodeError> {
    create_dir(dir)?;
    match fs::read_dir(dir).map_err(|e| file("read", dir, e))?.next() {
        Some(_) => Err(NodeError::DirectoryNotEmpty(dir.into())),
        None => Ok(()),
    }
}

/// Creates a directory that only its owner may enter, since it holds keys and state.
fn create_dir(dir: &Path) -> Result<(), NodeError> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| file("create", dir, e))
}

fn write_new(path: &Path, text: &str) -> Result<(), NodeError> {
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(|e| file("write", path, e))
}

fn file(action: &'static str, path: &Path, source: std::io::Error) -> NodeError {
    NodeError::File { action, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use ostraca_codes::codes;

    use super::*;

    fn options() -> InitOptions {
        InitOptions {
            cluster_name: "test".into(),
            node: "n1".into(),
            listen: ([127, 0, 0, 1], 0).into(),
            shards: 8,
            settings: ClusterSettings::default(),
            postgres: None,
            rows: None,
        }
    }

    #[test]
    fn init_creates_a_configuration_an_identity_and_a_store() {
        let dir = tempfile::tempdir().expect("a directory");
        let created = init(&dir.path().join("a/b"), &options()).expect("created");
        let config = Config::load(&created.config).expect("a configuration");
        let (trust, identity) = config.load_identity().expect("an identity");
        assert_eq!(trust.cluster, created.cluster);
        assert_eq!(identity.principal().to_string(), "node/n1");
        assert_eq!(created.admin.principal().to_string(), "client/admin");
        let mut store = config.store_options();
        store.cluster = Some(trust.cluster);
        let store = SledStore::open(&config.store_dir(), &store).expect("a store");
        assert_eq!(store.identity().cluster_name, "test");
    }

    #[test]
    fn join_creates_an_identity_of_the_cluster_and_no_store() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = init(&dir.path().join("n1"), &options()).expect("created");
        let joining = |node: &str, roles: &[Role]| JoinOptions {
            node: node.into(),
            listen: ([127, 0, 0, 1], 0).into(),
            roles: roles.into(),
            join: vec!["127.0.0.1:7411".into(), "[::1]:7412".into()],
            postgres: None,
            rows: None,
            ca: first.ca.clone(),
        };
        let place = dir.path().join("n2");
        let created = join(&place, &joining("n2", &[Role::Manager, Role::Host])).expect("created");
        assert_eq!(created.cluster, first.cluster);
        let config = Config::load(&created.config).expect("a configuration");
        let (trust, identity) = config.load_identity().expect("an identity");
        assert_eq!((trust.cluster, identity.principal().name.as_str()), (first.cluster, "n2"));
        assert_eq!(config.join, ["127.0.0.1:7411", "[::1]:7412"]);
        assert!(!config.roles().store && !config.roles().gateway && config.roles().host);
        assert!(!config.store_dir().exists() && !place.join("ca/ca.key").exists());
        for (bad, code) in [
            (joining("n3", &[Role::Store]), "invalid-value"),
            (joining("n3", &[]), "invalid-value"),
            (JoinOptions { join: Vec::new(), ..joining("n3", &[Role::Host]) }, "invalid-value"),
            (
                JoinOptions { ca: place.join("ca"), ..joining("n3", &[Role::Host]) },
                "invalid-identity",
            ),
        ] {
            let place = dir.path().join("n3");
            assert_eq!(join(&place, &bad).expect_err("refused").code(), code);
            assert!(!place.exists(), "nothing is created for {bad:?}");
        }
    }

    #[test]
    fn a_certificate_of_another_principal_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let created = init(dir.path(), &options()).expect("created");
        let ca = Ca::load(&created.ca).expect("the authority");
        let foreign = Ca::create(ClusterId(7)).expect("another authority");
        for (identity, named) in [
            (ca.issue_client("bob"), "client/bob"),
            (ca.issue_node("n2", &[]), "node/n2"),
            (foreign.issue_node("n1", &[]), "of cluster 0000"),
        ] {
            identity.expect("issued").save(dir.path(), "node").expect("saved");
            let config = Config::load(&created.config).expect("a configuration");
            let error = config.load_identity().expect_err("refused");
            assert_eq!(error.code(), "identity-mismatch");
            let text = error.to_string();
            assert!(text.contains(named) && text.contains("node/n1"), "{text}");
        }
    }

    #[test]
    fn a_directory_that_is_not_empty_is_refused_untouched() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("mine"), "x").expect("written");
        let error = init(dir.path(), &options()).expect_err("refused");
        assert_eq!((error.code(), error.exit_code()), (codes::DIRECTORY_NOT_EMPTY, 2));
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 1);
    }

    #[test]
    fn invalid_names_and_counts_are_refused_before_any_write() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("node");
        for bad in [
            InitOptions { node: "a/b".into(), ..options() },
            InitOptions { cluster_name: String::new(), ..options() },
            InitOptions { shards: 0, ..options() },
        ] {
            assert_eq!(init(&place, &bad).expect_err("refused").code(), "invalid-value");
        }
        assert!(!place.exists());
    }
}
