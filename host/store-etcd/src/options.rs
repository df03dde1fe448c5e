//! The settings of a store in etcd.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ostraca_core::ids::ClusterId;
use tonic::transport::Uri;

/// Settings, each with a default except the addresses.
#[derive(Clone, Debug)]
pub struct Options {
    /// The members of the etcd cluster, each `HOST:PORT`. One is used at a time; the others take over when it fails.
    pub endpoints: Vec<String>,
    /// What all keys start with, so that one etcd can serve several clusters and other programs. Default `ostraca/`.
    pub prefix: String,
    /// The user to log in as, if etcd asks for one. Default: none.
    pub user: Option<String>,
    /// A file with the user's password, read at each login.
    pub password_file: Option<PathBuf>,
    /// Encryption of the connections. Default [`Tls::Off`].
    pub tls: Tls,
    /// The cluster that the store must belong to. Default: any.
    pub cluster: Option<ClusterId>,
    /// How long opening a connection to a member may take. Default 1 s.
    pub connect_timeout: Duration,
    /// How long a member may leave a request unanswered before another one is asked. Default 1 s.
    pub attempt_timeout: Duration,
    /// How long a call may take in all; afterwards its outcome counts as unknown. Default 5 s.
    pub call_timeout: Duration,
    /// How long a change of this process may be missing in the watch of a member before another one is watched.
    /// Default 1 s.
    pub watch_timeout: Duration,
    /// Maximum number of calls in one transaction. With 2 more, it must not exceed etcd's `max-txn-ops`, 128 by
    /// default. Default 100.
    pub batch_rows: usize,
    /// Bytes of keys and values in one transaction at which no further call joins it. With one row more, it must stay
    /// below etcd's `max-request-bytes`, 1.5 MiB by default. Default 1 MiB.
    pub batch_bytes: usize,
    /// Maximum number of calls that wait; further ones are refused. Default 16,384.
    pub queue_rows: usize,
    /// Number of changes of rows that are kept in memory for watches of this process. Default 8,192.
    pub watch_history_changes: usize,
    /// Size in bytes of these changes. Default 16 MiB.
    pub watch_history_bytes: usize,
}

/// Encryption of the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// None: everyone on the way to etcd can read and change what is sent.
    #[default]
    Off,
    /// TLS 1.2 or 1.3. A member's certificate must carry the name of its host.
    Verify {
        /// PEM file with the certificates that the members' ones are checked against. `None`: those of the public
        /// authorities.
        ca: Option<PathBuf>,
        /// PEM files with the certificate and the key that this process shows, if etcd asks for one.
        identity: Option<(PathBuf, PathBuf)>,
    },
}

impl Options {
    /// The default settings for an etcd cluster with these members.
    #[must_use]
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            prefix: "ostraca/".into(),
            user: None,
            password_file: None,
            tls: Tls::default(),
            cluster: None,
            connect_timeout: Duration::from_secs(1),
            attempt_timeout: Duration::from_secs(1),
            call_timeout: Duration::from_secs(5),
            watch_timeout: Duration::from_secs(1),
            batch_rows: 100,
            batch_bytes: 1 << 20,
            queue_rows: 16_384,
            watch_history_changes: 8192,
            watch_history_bytes: 16 << 20,
        }
    }

    /// Checks the address of a member.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check_endpoint(endpoint: &str) -> Result<(), String> {
        if endpoint.contains("://") || endpoint.contains('/') || endpoint.contains('@') {
            return Err("write HOST:PORT; whether TLS is used is the setting `tls`".into());
        }
        let parsed: Uri = format!("http://{endpoint}").parse().map_err(|_| "it is no HOST:PORT")?;
        match (parsed.host().unwrap_or_default().is_empty(), parsed.port_u16()) {
            (false, Some(1..)) => Ok(()),
            (true, _) => Err("it names no host".into()),
            _ => Err("it has no port; etcd's is 2379 by default".into()),
        }
    }

    /// Whether the member is on this machine.
    #[must_use]
    pub fn is_local(endpoint: &str) -> bool {
        let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// The etcd cluster in words.
    #[must_use]
    pub fn place(&self) -> String {
        format!("etcd at {}, keys {}", self.endpoints.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_members_are_host_and_port() {
        for good in ["localhost:2379", "127.0.0.1:1", "[::1]:2379", "etcd-0.etcd.example.org:2379"]
        {
            assert_eq!(Options::check_endpoint(good), Ok(()), "{good}");
        }
        for bad in
            ["", "localhost", "http://a:1", "a:0", ":2379", "a:b", "a:1/x", "u@a:1", "a:99999"]
        {
            assert!(Options::check_endpoint(bad).is_err(), "{bad}");
        }
        assert!(Options::is_local("localhost:1") && Options::is_local("[::1]:1"));
        assert!(Options::is_local("127.0.0.2:1") && !Options::is_local("10.0.0.1:1"));
    }
}
