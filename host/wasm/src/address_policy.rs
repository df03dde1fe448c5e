//! Which addresses guests may call. The check is on the address to which the node then connects, so a name that resolves
//! differently the second time does not bypass it.
//!
//! Only addresses of the public internet are permitted, unless the node's settings allow more. An IPv6 address that
//! embeds an IPv4 address is treated as that IPv4 address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses, such as `10.0.0.0/8`, `fd00::/8` or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    prefix: u8,
}

impl AddressRange {
    const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> AddressRange {
        AddressRange { first: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
    }

    const fn v6(a: u16, b: u16, c: u16, prefix: u8) -> AddressRange {
        AddressRange { first: IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0)), prefix }
    }

    fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let differ = first.to_bits() ^ address.to_bits();
                differ.leading_zeros() >= self.prefix.into()
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let differ = first.to_bits() ^ address.to_bits();
                differ.leading_zeros() >= self.prefix.into()
            }
            _ => false,
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<AddressRange, String> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr =
            address.parse().map_err(|_| format!("{address:?} is not an IP address"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = match prefix {
            None => most,
            Some(text) => match text.parse() {
                Ok(prefix) if prefix <= most && digits(text) => prefix,
                _ => return Err(format!("the prefix of {address} must be from 0 to {most}")),
            },
        };
        let range = AddressRange { first: address, prefix };
        let rest = match address {
            IpAddr::V4(address) => {
                address.to_bits().checked_shl(prefix.into()).is_some_and(|rest| rest != 0)
            }
            IpAddr::V6(address) => {
                address.to_bits().checked_shl(prefix.into()).is_some_and(|rest| rest != 0)
            }
        };
        if rest {
            return Err(format!("{address} has bits set beyond its prefix of {prefix}"));
        }
        Ok(range)
    }
}

/// IPv4 addresses that are not public.
const REFUSED_V4: [AddressRange; 16] = [
    // This network.
    AddressRange::v4(0, 0, 0, 0, 8),
    // Private.
    AddressRange::v4(10, 0, 0, 0, 8),
    AddressRange::v4(172, 16, 0, 0, 12),
    AddressRange::v4(192, 168, 0, 0, 16),
    // Carrier-grade NAT; some clouds serve metadata there.
    AddressRange::v4(100, 64, 0, 0, 10),
    // Loopback.
    AddressRange::v4(127, 0, 0, 0, 8),
    // Link-local, with the metadata address of most clouds.
    AddressRange::v4(169, 254, 0, 0, 16),
    // A cloud's host agent, at a public address.
    AddressRange::v4(168, 63, 129, 16, 32),
    // Protocol assignments, and the former 6to4 relays.
    AddressRange::v4(192, 0, 0, 0, 24),
    AddressRange::v4(192, 88, 99, 0, 24),
    // Documentation.
    AddressRange::v4(192, 0, 2, 0, 24),
    AddressRange::v4(198, 51, 100, 0, 24),
    AddressRange::v4(203, 0, 113, 0, 24),
    // Benchmarks.
    AddressRange::v4(198, 18, 0, 0, 15),
    // Multicast.
    AddressRange::v4(224, 0, 0, 0, 4),
    // Reserved, with the broadcast address.
    AddressRange::v4(240, 0, 0, 0, 4),
];

/// Everything outside of it is refused: loopback, unique-local and link-local addresses, multicast, and others.
const GLOBAL_UNICAST_V6: AddressRange = AddressRange::v6(0x2000, 0, 0, 3);
/// Parts of it that are not public.
const REFUSED_V6: [AddressRange; 4] = [
    // Protocol assignments: Teredo, benchmarks, ORCHID.
    AddressRange::v6(0x2001, 0, 0, 23),
    // Documentation.
    AddressRange::v6(0x2001, 0xdb8, 0, 32),
    AddressRange::v6(0x3fff, 0, 0, 20),
    // 6to4, whose addresses stand for IPv4 addresses.
    AddressRange::v6(0x2002, 0, 0, 16),
];
/// The prefix under which a NAT64 gateway translates IPv4 addresses.
const NAT64: AddressRange = AddressRange::v6(0x64, 0xff9b, 0, 96);

/// Decides to which addresses calls may connect.
#[derive(Debug, Clone, Default)]
pub(crate) struct AddressPolicy {
    allowed: Vec<AddressRange>,
}

impl AddressPolicy {
    /// A policy that also permits these ranges.
    pub(crate) fn new(allowed: Vec<AddressRange>) -> AddressPolicy {
        AddressPolicy { allowed }
    }

    pub(crate) fn permits(&self, address: IpAddr) -> bool {
        if self.allowed.iter().any(|range| range.contains(address)) {
            return true;
        }
        match address {
            IpAddr::V4(_) => !REFUSED_V4.iter().any(|range| range.contains(address)),
            IpAddr::V6(v6) => match embedded_v4(v6) {
                Some(v4) => self.permits(IpAddr::V4(v4)),
                None => {
                    GLOBAL_UNICAST_V6.contains(address)
                        && !REFUSED_V6.iter().any(|range| range.contains(address))
                }
            },
        }
    }
}

/// The IPv4 address that an IPv6 address embeds: IPv4-mapped, or translated by NAT64.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let nat64 = || {
        let [.., a, b, c, d] = address.octets();
        NAT64.contains(IpAddr::V6(address)).then(|| Ipv4Addr::new(a, b, c, d))
    };
    address.to_ipv4_mapped().or_else(nat64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(policy: &AddressPolicy, address: &str) -> bool {
        policy.permits(address.parse().unwrap())
    }

    #[test]
    fn only_public_addresses_are_permitted() {
        let policy = AddressPolicy::default();
        for refused in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.8.9.10",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            // IPv4-compatible, IPv4-mapped, translated.
            "::7f00:1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:8.8.8.8",
            "64:ff9b::7f00:1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::8.8.8.8",
            "100::1",
            "2001::1",
            "2001:0:7f00:1::",
            "2001:2::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:808:808::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!permits(&policy, refused), "{refused}");
        }
        for permitted in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "168.63.129.17",
            "192.0.1.1",
            "198.17.255.255",
            "198.20.0.1",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2001:200::1",
            "2606:4700::1111",
            "2a00:1450::1",
        ] {
            assert!(permits(&policy, permitted), "{permitted}");
        }
    }

    #[test]
    fn an_allowed_range_permits_its_addresses_only() {
        let ranges = ["127.0.0.0/8", "fd00:1::/32", "192.168.7.9"];
        let ranges = ranges.map(|range| range.parse().unwrap());
        let policy = AddressPolicy::new(ranges.to_vec());
        for permitted in ["127.1.2.3", "::ffff:127.0.0.1", "fd00:1:2::3", "192.168.7.9", "8.8.8.8"]
        {
            assert!(permits(&policy, permitted), "{permitted}");
        }
        for refused in ["10.0.0.1", "::1", "fd00:2::1", "192.168.7.8", "169.254.169.254"] {
            assert!(!permits(&policy, refused), "{refused}");
        }
    }

    #[test]
    fn a_range_has_a_prefix_and_no_further_bits() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("fd00::/8", "fd00::/8"),
            ("::1", "::1/128"),
        ] {
            assert_eq!(text.parse::<AddressRange>().unwrap().to_string(), shown);
        }
        for wrong in
            ["", "localhost", "10.0.0.0/33", "10.0.0.1/8", "::1/64", "::/129", "10.0.0.0/+8", "/8"]
        {
            assert!(wrong.parse::<AddressRange>().is_err(), "{wrong}");
        }
    }
}
