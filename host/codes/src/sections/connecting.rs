//! Failures to connect to a node.

section! {
    class: Connecting,
    outcome: NoMessage,
    codes: {
        USAGE = "usage" {
            retry: No,
            happened: "The command line is wrong. Exit code 2.",
            help: "The text says what is wrong; see `--help`.",
        }
        NO_PROFILE = "no-profile" {
            retry: No,
            happened: "No profile was named, and neither the current directory nor a parent has `.ostraca/profile.toml`.",
            help: "`ostraca dev` here, `--profile FILE`, or `OSTRACA_PROFILE`.",
        }
        INVALID_PROFILE = "invalid-profile" {
            retry: No,
            happened: "The profile or a file that it names cannot be read, or its parts belong to different clusters. Exit code 2.",
            help: "Get a new profile from the cluster.",
        }
        NO_NODE_REACHABLE = "no-node-reachable" {
            retry: Yes,
            happened: "No address of the profile responds.",
            help: "Start a node, or fix the addresses.",
        }
        NO_CERTIFICATE = "no-certificate" {
            retry: No,
            happened: "The node requires a certificate, but the client has none.",
            help: "`ostraca ca issue client NAME --ca DIR`.",
        }
        UNKNOWN_CA = "unknown-ca" {
            retry: No,
            happened: "One side's certificate was signed by another authority: that of another cluster, or of an outdated profile.",
            help: "Get a profile of this cluster.",
        }
        CERTIFICATE_EXPIRED = "certificate-expired" {
            retry: No,
            happened: "A certificate has expired or is not yet valid. A node does not start with one (exit code 7).",
            help: "Issue a new one; check the machine's clock.",
        }
        CERTIFICATE_REFUSED = "certificate-refused" {
            retry: No,
            happened: "The node rejected this certificate.",
            help: "Issue one with `ostraca ca issue`.",
        }
        NOT_A_NODE = "not-a-node" {
            retry: No,
            happened: "The server at the address is not a node of this cluster.",
            help: "Check the address.",
        }
        UNKNOWN_PROTOCOL = "unknown-protocol" {
            retry: No,
            happened: "The peer does not support this protocol.",
            help: "Check the address and the versions.",
        }
    }
}
