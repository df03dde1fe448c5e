//! What a health check is told about a process.

use ostraca_core::rows::{HostProcess, Member, NodeRow, PodProcess};

/// The process that a health check is asked about: that of one incarnation of a node, as its row describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The node, and the incarnation that the check is about.
    pub member: Member,
    /// The addresses at which clients and nodes reach it.
    pub addresses: Vec<String>,
    /// The process on its machine; `None` if the node had no health check of this kind when it registered.
    pub host: Option<HostProcess>,
    /// The process in its pod; `None` if the node had no health check in Kubernetes when it registered.
    pub pod: Option<PodProcess>,
}

impl Suspect {
    /// The names of the fields that commands and servers get.
    pub(crate) const FIELDS: [&str; 8] = [
        "node",
        "incarnation",
        "addresses",
        "host",
        "boot_id",
        "pid_namespace",
        "pid",
        "start_ticks",
    ];

    /// The process of this incarnation, according to the row that it wrote. The texts that describe it on its machine
    /// are empty unless they are a host name and a boot id: a program may pass them to a shell.
    #[must_use]
    pub fn new(member: Member, row: &NodeRow) -> Self {
        Self {
            member,
            addresses: row.addresses.clone(),
            host: row.host_process().map(validated),
            pod: row.process(),
        }
    }

    /// The incarnation as text: its counter and its nonce, such as `7-00c5ab3d9e021f44`.
    #[must_use]
    pub fn incarnation(&self) -> String {
        self.member.incarnation.to_string()
    }

    /// The value of one of [`Self::FIELDS`]; `None` if it is unknown.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let host = self.host.as_ref();
        match name {
            "node" => Some(self.member.node.0.to_string()),
            "incarnation" => Some(self.incarnation()),
            "addresses" => Some(self.addresses.join(" ")),
            "host" => host.map(|host| host.host.clone()),
            "boot_id" => host.map(|host| host.boot_id.clone()),
            "pid_namespace" => host.map(|host| host.pid_namespace.to_string()),
            "pid" => host.map(|host| host.pid.to_string()),
            "start_ticks" => host.map(|host| host.start_ticks.to_string()),
            _ => None,
        }
    }
}

fn validated(mut process: HostProcess) -> HostProcess {
    if !is_host_name(&process.host) {
        process.host.clear();
    }
    if !is_boot_id(&process.boot_id) {
        process.boot_id.clear();
    }
    process
}

/// Letters, digits, `-`, `_` and dots, which no shell interprets, and no program takes for an option.
fn is_host_name(text: &str) -> bool {
    let may_occur = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= 253
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(may_occur)
}

/// A UUID in lower case, as the kernel prints it.
fn is_boot_id(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
}

#[cfg(test)]
pub(crate) mod tests {
    use ostraca_core::ids::Incarnation;

    use super::{HostProcess, Member, NodeRow, Suspect};

    pub(crate) fn suspect() -> Suspect {
        let host = HostProcess {
            host: "m 1".into(),
            boot_id: "b1".into(),
            pid_namespace: 5,
            pid: 42,
            start_ticks: 99,
        };
        Suspect {
            member: Member {
                node: "n1".into(),
                incarnation: Incarnation { counter: 7, nonce: 0xc5ab },
            },
            addresses: vec!["a:1".into(), "b:2".into()],
            host: Some(host),
            pod: None,
        }
    }

    #[test]
    fn every_field_has_a_value() {
        let suspect = suspect();
        let values = Suspect::FIELDS.map(|name| suspect.field(name).expect(name));
        let expected = ["n1", "7-000000000000c5ab", "a:1 b:2", "m 1", "b1", "5", "42", "99"];
        assert_eq!(values, expected);
        let unknown = Suspect { host: None, ..suspect };
        assert_eq!(unknown.field("pid"), None);
    }

    fn described(host: &str, boot_id: &str) -> [String; 2] {
        let Suspect { member, host: process, .. } = suspect();
        let process = process.expect("a process");
        let process = HostProcess { host: host.into(), boot_id: boot_id.into(), ..process };
        let row = NodeRow::for_tests(member.incarnation);
        let suspect = Suspect::new(member, &row.with_host_process(&process));
        ["host", "boot_id"].map(|name| suspect.field(name).expect(name))
    }

    #[test]
    fn s7_a_rows_texts_cannot_run_in_a_shell() {
        let boot_id = "1d9a2c47-0b1e-4f6a-9c55-7e0a12bc34de";
        for host in ["n1", "node-1.example.org", "a_b", "7"] {
            assert_eq!(described(host, boot_id), [host, boot_id]);
        }
        let long = "a".repeat(254);
        for host in [
            "",
            "-oProxyCommand=x",
            ".",
            "a b",
            "a;id",
            "$(id)",
            "`id`",
            "a\nb",
            "a'",
            "\u{e4}",
            &long,
        ] {
            assert_eq!(described(host, boot_id), ["", boot_id], "{host:?}");
        }
        for boot_id in [
            "",
            "b1",
            "1D9A2C47-0B1E-4F6A-9C55-7E0A12BC34DE",
            "1d9a2c47-0b1e-4f6a-9c55-7e0a12bc34d;",
            "1d9a2c47-0b1e-4f6a-9c55-7e0a12bc34de ",
            "1d9a2c4700b1e-4f6a-9c55-7e0a12bc34de",
            "1d9a2c47-0b1e-4f6a-9c55-7e0a12bc34\u{e4}",
        ] {
            assert_eq!(described("n1", boot_id), ["n1", ""], "{boot_id:?}");
        }
    }
}
