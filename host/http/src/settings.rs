//! The settings of the gateway, each with a default.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The certificate with which the gateway serves TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those that connect it to an authority that clients know, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
}

/// Settings of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// The TCP address to listen on.
    pub listen: SocketAddr,
    /// Required unless `listen` is a loopback address.
    pub tls: Option<TlsFiles>,
    /// Whether it serves HTTP/3 too, on UDP at the same address and port. Only with `tls`. Default true.
    pub http3: bool,
    /// Names by which clients address the gateway, besides its address; on a loopback address also `localhost`.
    pub hosts: Vec<String>,
    /// Maximum number of connections. At the limit, further ones wait to be accepted. Default 1,024.
    pub max_connections: usize,
    /// Maximum number of a principal's requests at the same time. Error `too-many-requests`. Default 1,000.
    pub principal_requests: usize,
    /// Maximum number of a principal's requests in a second; 0 for no limit. Error `rate-limited`. Default 20,000.
    pub principal_rate: u32,
    /// Maximum size of a request's line and headers in bytes. Default 16 KiB.
    pub max_header_bytes: usize,
    /// How long a connection may take to send the headers of a request, or be idle, and for the TLS handshake. Default
    /// 10 s.
    pub header_timeout: Duration,
    /// How long a request may take to send its body. Default 30 s.
    pub body_timeout: Duration,
    /// Maximum size in bytes of all bodies that are being received. At the limit, a request waits for `body-timeout`.
    /// Default 64 MiB.
    pub max_body_bytes: u32,
    /// Deadline of a call without the header `ostraca-timeout`. Default 10 s.
    pub default_timeout: Duration,
    /// The longest deadline that a caller may ask for. Default 5 min.
    pub max_timeout: Duration,
}

impl HttpSettings {
    /// The defaults, for this address.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            tls: None,
            http3: true,
            hosts: Vec::new(),
            max_connections: 1_024,
            principal_requests: 1_000,
            principal_rate: 20_000,
            max_header_bytes: 16 << 10,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            max_body_bytes: 64 << 20,
            default_timeout: Duration::from_secs(10),
            max_timeout: Duration::from_secs(300),
        }
    }
}
