//! Arguments of `ostraca init`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use ostraca_node::config::Role;

use super::{host_and_port, ip_and_port, key_value};

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("way_to_join").args(["join", "postgres", "etcd", "kubernetes"]).multiple(true)))]
pub(crate) struct Init {
    /// Directory to create the node in; must be empty or not exist yet
    pub(crate) dir: PathBuf,
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "ostraca", conflicts_with = "ca")]
    pub(crate) cluster: String,
    /// The node's name [default: node-1; with --ca, the directory's]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// The address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7411", value_parser = ip_and_port)]
    pub(crate) listen: SocketAddr,
    /// Number of shards of the pool `default`; never changes (`ostraca pool copy` moves its types to another pool)
    #[arg(long, value_name = "N", default_value_t = ostraca_node::init::DEFAULT_SHARDS, conflicts_with = "ca")]
    pub(crate) shards: u32,
    /// A cluster-wide setting, such as lease="10 s"; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, conflicts_with = "ca")]
    pub(crate) set: Vec<(String, String)>,
    /// Address of a node whose cluster the new node joins; may be repeated
    #[arg(long, value_name = "HOST:PORT", requires = "ca",
          conflicts_with_all = ["postgres", "etcd", "kubernetes"],
          value_parser = host_and_port)]
    pub(crate) join: Vec<String>,
    /// Keep the cluster's state in this PostgreSQL database, such as "host=HOST user=USER dbname=DATABASE"; with --ca,
    /// the new node joins the cluster in it
    #[arg(long, value_name = "URL")]
    pub(crate) postgres: Option<String>,
    /// File with the password for the database
    #[arg(long, value_name = "FILE", requires = "postgres")]
    pub(crate) postgres_password_file: Option<PathBuf>,
    /// Encryption of the connections to the database; required unless it is on this machine
    #[arg(long, value_name = "MODE", requires = "postgres", value_enum)]
    pub(crate) postgres_tls: Option<TlsMode>,
    /// PEM file with the authority of the database's certificate [default: the public authorities]
    #[arg(long, value_name = "FILE", requires = "postgres")]
    pub(crate) postgres_ca_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    #[command(flatten)]
    pub(crate) kubernetes: KubernetesArgs,
    /// Directory of the cluster's authority, with ca.pem and ca.key: the new node joins that cluster
    #[arg(long, value_name = "DIR", requires = "way_to_join")]
    pub(crate) ca: Option<PathBuf>,
    /// Roles of the joining node: manager (may assign shards), host (owns shards and runs entities), host.NAME (the same
    /// for pools with this role), gateway (accepts clients); only the first node has the role store
    #[arg(long, value_name = "ROLES", value_delimiter = ',', requires = "ca",
          default_values = ["manager", "host", "gateway"])]
    pub(crate) roles: Vec<Role>,
}

/// Where etcd is.
#[derive(Debug, clap::Args)]
pub(crate) struct EtcdArgs {
    /// Keep the cluster's rows (nodes, leases, owners of shards, deployments) in etcd: a member, or several separated by
    /// commas; with --ca, the new node joins the cluster in it
    #[arg(long = "etcd", id = "etcd", value_name = "HOST:PORT", value_delimiter = ',')]
    pub(crate) endpoints: Vec<String>,
    /// What all keys in etcd start with [default: ostraca/]
    #[arg(long = "etcd-prefix", value_name = "PREFIX", requires = "etcd")]
    pub(crate) prefix: Option<String>,
    /// User to log in to etcd as
    #[arg(long = "etcd-user", value_name = "NAME", requires = "etcd")]
    pub(crate) user: Option<String>,
    /// File with the password for etcd
    #[arg(long = "etcd-password-file", value_name = "FILE", requires = "etcd")]
    pub(crate) password_file: Option<PathBuf>,
    /// Encryption of the connections to etcd; required unless it is on this machine
    #[arg(long = "etcd-tls", value_name = "MODE", requires = "etcd", value_enum)]
    pub(crate) tls: Option<TlsMode>,
    /// PEM file with the authority of the certificates of etcd's members [default: the public authorities]
    #[arg(long = "etcd-ca-file", value_name = "FILE", requires = "etcd")]
    pub(crate) ca_file: Option<PathBuf>,
    /// PEM file with the certificate to show to etcd
    #[arg(
        long = "etcd-certificate-file",
        id = "etcd_certificate",
        value_name = "FILE",
        requires_all = ["etcd", "etcd_key"]
    )]
    pub(crate) certificate_file: Option<PathBuf>,
    /// PEM file with the key of that certificate
    #[arg(
        long = "etcd-key-file",
        id = "etcd_key",
        value_name = "FILE",
        requires_all = ["etcd", "etcd_certificate"]
    )]
    pub(crate) key_file: Option<PathBuf>,
}

/// Where Kubernetes is.
#[derive(Debug, clap::Args)]
pub(crate) struct KubernetesArgs {
    /// Keep the cluster's rows in Kubernetes, as leases in a namespace: the API server's address, or in-cluster for the
    /// pod's; with --ca, the new node joins the cluster there
    #[arg(long = "kubernetes", id = "kubernetes", value_name = "URL", conflicts_with = "etcd")]
    pub(crate) url: Option<String>,
    /// The namespace in Kubernetes [default with in-cluster: the pod's; otherwise required]
    #[arg(
        long = "kubernetes-namespace",
        id = "kubernetes_namespace",
        value_name = "NAME",
        requires = "kubernetes"
    )]
    pub(crate) namespace: Option<String>,
    /// What the names of the leases start with [default: ostraca]
    #[arg(
        long = "kubernetes-name",
        id = "kubernetes_name",
        value_name = "NAME",
        requires = "kubernetes"
    )]
    pub(crate) name: Option<String>,
    /// File with the token for the API server [default with in-cluster: the pod's; otherwise none]
    #[arg(
        long = "kubernetes-token-file",
        id = "kubernetes_token_file",
        value_name = "FILE",
        requires = "kubernetes"
    )]
    pub(crate) token_file: Option<PathBuf>,
    /// PEM file with the authority of the API server's certificate [default with in-cluster: the pod's; otherwise the
    /// public authorities]
    #[arg(
        long = "kubernetes-ca-file",
        id = "kubernetes_ca_file",
        value_name = "FILE",
        requires = "kubernetes"
    )]
    pub(crate) ca_file: Option<PathBuf>,
    /// PEM file with the certificate to show to the API server
    #[arg(
        long = "kubernetes-certificate-file",
        id = "kubernetes_certificate",
        value_name = "FILE",
        requires_all = ["kubernetes", "kubernetes_key"]
    )]
    pub(crate) certificate_file: Option<PathBuf>,
    /// PEM file with the key of that certificate
    #[arg(
        long = "kubernetes-key-file",
        id = "kubernetes_key",
        value_name = "FILE",
        requires_all = ["kubernetes", "kubernetes_certificate"]
    )]
    pub(crate) key_file: Option<PathBuf>,
}

/// Encryption of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TlsMode {
    /// TLS; the server's certificate must carry its host's name
    Verify,
    /// None
    Off,
}
