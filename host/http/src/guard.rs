//! Refuses requests that are addressed to another host.
//!
//! A page of some other site can make a browser send requests to any address, also to one that only this machine
//! reaches, by a name that it lets point there (DNS rebinding). Such a request carries that name.

use std::net::{IpAddr, SocketAddr};

use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri, header};
use ostraca_codes::codes;

use crate::problem::Problem;

/// The hosts by which the gateway may be addressed.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    address: SocketAddr,
    names: Vec<String>,
}

impl Hosts {
    pub(crate) fn new(address: SocketAddr, names: &[String]) -> Self {
        let mut names: Vec<_> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        if address.ip().is_loopback() {
            names.push("localhost".into());
        }
        Self { address, names }
    }

    /// Refuses a request for another host.
    ///
    /// # Errors
    /// `wrong-host`.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let refused = |text: String| {
            Problem::refused(StatusCode::MISDIRECTED_REQUEST, codes::WRONG_HOST, text).help(
                "use the address that the node prints, or name the host in `http.hosts` of its configuration",
            )
        };
        let mut values = headers.get_all(header::HOST).iter();
        let host = match (uri.authority(), values.next(), values.next()) {
            // HTTP/2 has it in the target, HTTP/1.1 in a header; in both, they must agree.
            (Some(authority), None, None) => authority.clone(),
            (authority, Some(value), None) => {
                let parsed = value.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
                let parsed = parsed.ok_or_else(|| refused("the host is not valid".into()))?;
                if authority.is_some_and(|authority| *authority != parsed) {
                    return Err(refused("the target and the header `host` differ".into()));
                }
                parsed
            }
            _ => return Err(refused("the request names no host, or several".into())),
        };
        if self.is_own(&host) {
            return Ok(());
        }
        Err(refused(format!("{:?} is not a host of this gateway", host.host())))
    }

    /// Like [`Hosts::check`], on a loopback address; elsewhere, every host is allowed.
    ///
    /// # Errors
    /// `wrong-host`.
    pub(crate) fn check_local(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        if self.address.ip().is_loopback() { self.check(uri, headers) } else { Ok(()) }
    }

    fn is_own(&self, host: &Authority) -> bool {
        if host.as_str().contains('@') {
            return false;
        }
        let name = host.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        if self.names.contains(&name) {
            return true;
        }
        match name.parse::<IpAddr>() {
            // Behind an unspecified address, any address of the machine is its own.
            Ok(ip) => {
                self.address.ip() == ip
                    || self.address.ip().is_unspecified()
                    || (self.address.ip().is_loopback() && ip.is_loopback())
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(hosts: &Hosts, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().expect("a value"));
        hosts.check(&Uri::from_static("/v1"), &headers).is_ok()
    }

    #[test]
    fn only_the_gateways_own_hosts_are_allowed() {
        let local = Hosts::new(([127, 0, 0, 1], 7480).into(), &[]);
        for host in ["127.0.0.1:7480", "127.0.0.1", "localhost:7480", "LOCALHOST", "[::1]:7480"] {
            assert!(allows(&local, host), "{host}");
        }
        let evil = [
            "evil.example",
            "evil.example:7480",
            "127.0.0.1.evil.example",
            "u@localhost",
            "10.0.0.1",
            "",
        ];
        for host in evil {
            assert!(!allows(&local, host), "{host}");
        }
        let public = Hosts::new(([0, 0, 0, 0], 443).into(), &["api.example.com".into()]);
        for (host, allowed) in [
            ("api.example.com", true),
            ("API.example.com:443", true),
            ("10.0.0.1", true),
            ("localhost", false),
            ("www.example.com", false),
        ] {
            assert_eq!(allows(&public, host), allowed, "{host}");
        }
    }

    #[test]
    fn several_hosts_are_refused() {
        let local = Hosts::new(([127, 0, 0, 1], 7480).into(), &[]);
        let mut headers = HeaderMap::new();
        assert!(local.check(&Uri::from_static("/"), &headers).is_err());
        headers.append(header::HOST, "localhost".parse().expect("a value"));
        let other = Uri::from_static("http://127.0.0.1/");
        assert!(local.check(&other, &headers).is_err());
        headers.append(header::HOST, "localhost".parse().expect("a value"));
        assert!(local.check(&Uri::from_static("/"), &headers).is_err());
    }
}
