//! The settings of a store in Kubernetes.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use ostraca_core::ids::ClusterId;

use crate::error::OpenError;

/// Where Kubernetes mounts a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The longest name of a store: object names and labels contain it.
const MAX_NAME: usize = 40;
/// The longest name of a namespace that Kubernetes accepts.
const MAX_NAMESPACE: usize = 63;

/// Settings, each with a default except the address of the API server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address of the API server, `https://HOST:PORT`, with a path if it is behind one. `http://` only for a
    /// server on this machine, such as `kubectl proxy`. Or [`Options::IN_CLUSTER`].
    pub url: String,
    /// The namespace of the objects. It must exist. Empty: the one of the service account, with
    /// [`Options::IN_CLUSTER`].
    pub namespace: String,
    /// The name of the store, so that one namespace can hold several: object names start with it, and a label has it.
    /// Default `ostraca`.
    pub name: String,
    /// A file with the bearer token, read again every minute, and at once if the API server refuses it. Default: none,
    /// or the service account's with [`Options::IN_CLUSTER`].
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificates that the API server's one is checked against, read for each connection. Default:
    /// those of the public authorities, or the service account's with [`Options::IN_CLUSTER`].
    pub ca_file: Option<PathBuf>,
    /// PEM files with the certificate and the key that this process shows. Default: none.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The cluster that the store must belong to. Default: any.
    pub cluster: Option<ClusterId>,
    /// What `kubectl get leases` shows as the holder of the objects that this process wrote last. Nothing compares it.
    /// Default: the environment variable `HOSTNAME`, which is the pod's name.
    pub holder: String,
    /// How long opening a connection may take. Default 2 s.
    pub connect_timeout: Duration,
    /// How long a request may be unanswered before it is sent again. Default 2 s.
    pub attempt_timeout: Duration,
    /// How long a call may take in all; afterwards its outcome counts as unknown. Default 5 s.
    pub call_timeout: Duration,
    /// How long a change of this process may be missing in its watch before the watch is opened again. Default 2 s.
    pub watch_timeout: Duration,
    /// Maximum number of requests at the same time, each on its own connection. The watch has a further one. Default 8.
    pub connections: usize,
    /// Maximum number of calls that wait or run; further ones are refused. Default 16,384.
    pub queue_rows: usize,
    /// Number of rows in one page of a list. Memory: at most 90 KiB for each. Default 200.
    pub page_rows: usize,
    /// Number of changes of rows that are kept in memory for watches of this process. Default 8,192.
    pub watch_history_changes: usize,
    /// Size in bytes of these changes. Default 16 MiB.
    pub watch_history_bytes: usize,
}

impl Options {
    /// What `url` says for the API server of the pod in which the process runs.
    pub const IN_CLUSTER: &str = "in-cluster";

    /// The default settings for a namespace of this API server.
    #[must_use]
    pub fn new(url: impl Into<String>, namespace: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            namespace: namespace.into(),
            name: "ostraca".into(),
            token_file: None,
            ca_file: None,
            identity: None,
            cluster: None,
            holder: std::env::var("HOSTNAME").unwrap_or_default(),
            connect_timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_secs(2),
            call_timeout: Duration::from_secs(5),
            watch_timeout: Duration::from_secs(2),
            connections: 8,
            queue_rows: 16_384,
            page_rows: 200,
            watch_history_changes: 8192,
            watch_history_bytes: 16 << 20,
        }
    }

    /// These settings, with those of the pod filled in if `url` asks for them.
    ///
    /// # Errors
    /// [`OpenError::NotInCluster`] outside a pod, [`OpenError::File`] if the service account is not mounted.
    pub(crate) fn resolved(self) -> Result<Self, OpenError> {
        if self.url != Self::IN_CLUSTER {
            return Ok(self);
        }
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host = variable("KUBERNETES_SERVICE_HOST");
        let port = variable("KUBERNETES_SERVICE_PORT");
        self.with_service_account(host, port, Path::new(SERVICE_ACCOUNT))
    }

    fn with_service_account(
        mut self,
        host: Option<String>,
        port: Option<String>,
        account: &Path,
    ) -> Result<Self, OpenError> {
        let (Some(host), Some(port)) = (host, port) else { return Err(OpenError::NotInCluster) };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        self.url = format!("https://{host}:{port}");
        if self.namespace.is_empty() {
            let path = account.join("namespace");
            let namespace = std::fs::read_to_string(&path);
            let namespace = namespace.map_err(|source| OpenError::File { path, source })?;
            self.namespace = namespace.trim().to_owned();
        }
        self.token_file.get_or_insert_with(|| account.join("token"));
        self.ca_file.get_or_insert_with(|| account.join("ca.crt"));
        Ok(self)
    }

    /// Checks the address of an API server.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check_url(url: &str) -> Result<(), String> {
        if url == Self::IN_CLUSTER {
            return Ok(());
        }
        let parsed: Uri = url.parse().map_err(|_| "it is no URL".to_owned())?;
        let host = parsed.host().unwrap_or_default();
        let local = host == "localhost" || address(host).is_some_and(|ip| ip.is_loopback());
        match parsed.scheme_str() {
            _ if host.is_empty() => {
                Err("it names no host; write https://HOST:PORT or in-cluster".into())
            }
            _ if parsed.authority().is_some_and(|it| it.as_str().contains('@')) => {
                Err("it has a user; use `token-file` or a certificate".into())
            }
            _ if parsed.query().is_some() => Err("it has a query".into()),
            Some("https") => Ok(()),
            Some("http") if local => Ok(()),
            Some("http") => Err("it sends the token in the clear; write https://".into()),
            _ => Err("write https://HOST:PORT".into()),
        }
    }

    /// Checks the name of a store: a DNS label of at most 40 bytes.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check_name(name: &str) -> Result<(), String> {
        check_label(name, MAX_NAME)
    }

    /// Checks the name of a namespace: a DNS label of at most 63 bytes.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check_namespace(name: &str) -> Result<(), String> {
        check_label(name, MAX_NAMESPACE)
    }

    /// The namespace and the store's name in words.
    #[must_use]
    pub fn place(&self) -> String {
        let Self { namespace, name, .. } = self;
        match namespace.is_empty() {
            true => format!("leases {name}.* in the namespace of the pod"),
            false => format!("leases {name}.* in the namespace {namespace}"),
        }
    }
}

fn check_label(name: &str, longest: usize) -> Result<(), String> {
    let allowed = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-';
    match name.bytes().all(allowed) && !name.starts_with('-') && !name.ends_with('-') {
        _ if name.is_empty() => Err("it is empty".into()),
        true if name.len() <= longest => Ok(()),
        true => Err(format!("it has {} bytes, limit is {longest}", name.len())),
        false => Err("only lower-case letters, digits and inner hyphens are allowed".into()),
    }
}

fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_https_unless_local() {
        for good in [
            "https://10.0.0.1:443",
            "https://[fd00::1]:6443",
            "https://rancher.example.org/k8s/clusters/c-1",
            "http://127.0.0.1:8001",
            "http://localhost:8001",
            "http://[::1]:8001",
        ] {
            assert_eq!(Options::check_url(good), Ok(()), "{good}");
        }
        assert_eq!(Options::check_url(Options::IN_CLUSTER), Ok(()));
        for bad in
            ["", "10.0.0.1:443", "http://10.0.0.1:80", "https://u:p@a", "ftp://a", "https://a?b=c"]
        {
            assert!(Options::check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_dns_labels() {
        for good in ["ostraca", "a", "a-1", &"a".repeat(40)] {
            assert_eq!(Options::check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a.b", "a/b", &"a".repeat(41)] {
            assert!(Options::check_name(bad).is_err(), "{bad}");
        }
        let long = format!("{}-{}", "a".repeat(39), "b".repeat(23));
        assert_eq!(Options::check_namespace(&long), Ok(()));
        for bad in ["", "A", "a-", &"a".repeat(64)] {
            assert!(Options::check_namespace(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pod_finds_its_api_server() {
        let account = tempfile::tempdir().expect("a directory");
        let in_pod = Options::new(Options::IN_CLUSTER, "");
        let resolve = |options: &Options, host: Option<&str>| {
            let port = Some("443".to_owned());
            options.clone().with_service_account(host.map(str::to_owned), port, account.path())
        };
        assert!(matches!(resolve(&in_pod, None), Err(OpenError::NotInCluster)));
        assert!(matches!(resolve(&in_pod, Some("10.0.0.1")), Err(OpenError::File { .. })));
        std::fs::write(account.path().join("namespace"), "shop\n").expect("written");
        let found = resolve(&in_pod, Some("fd00::1")).expect("settings");
        assert_eq!(
            (found.url.as_str(), found.namespace.as_str()),
            ("https://[fd00::1]:443", "shop")
        );
        assert_eq!(found.token_file, Some(account.path().join("token")));
        assert_eq!(found.ca_file, Some(account.path().join("ca.crt")));
        // What is set explicitly stays.
        let own = Options { token_file: Some("token".into()), ..in_pod };
        let own = Options { namespace: "other".into(), ..own };
        let found = resolve(&own, Some("10.0.0.1")).expect("settings");
        assert_eq!((found.namespace, found.token_file), ("other".into(), Some("token".into())));
    }
}
