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

    /// The process of this incarnation, according to the row that it wrote.
    #[must_use]
    pub fn new(member: Member, row: &NodeRow) -> Self {
        Self {
            member,
            addresses: row.addresses.clone(),
            host: row.host_process(),
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

#[cfg(test)]
pub(crate) mod tests {
    use ostraca_core::ids::Incarnation;

    use super::*;

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
}
