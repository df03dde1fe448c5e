//! Errors of a node, a store or a cluster setting that cannot be used.

section! {
    class: Starting,
    outcome: NoMessage,
    codes: {
        INVALID_CONFIG = "invalid-config" {
            retry: No,
            happened: "The configuration has an unknown key, a wrong type, or a value out of range. The line is marked.",
            help: "Fix the line; `ostraca config default` explains every setting.",
        }
        INVALID_VALUE = "invalid-value" {
            retry: No,
            happened: "A name, a count or an address is invalid.",
            help: "Fix it.",
        }
        DIRECTORY_NOT_EMPTY = "directory-not-empty" {
            retry: No,
            happened: "The directory for a new node or store is not empty. Existing files are never overwritten.",
            help: "Choose another directory.",
        }
        FILE_ERROR = "file-error" {
            retry: No,
            happened: "A file could not be read or written.",
            help: "Check the path and its permissions.",
        }
        INVALID_IDENTITY = "invalid-identity" {
            retry: No,
            happened: "A certificate or key cannot be used.",
            help: "Check `[identity]`; `ostraca ca issue node NAME --ca DIR`.",
        }
        IDENTITY_MISMATCH = "identity-mismatch" {
            retry: No,
            happened: "The certificate belongs to another node or a client or, on the node with the store, to another cluster.",
            help: "Check `node` and `[identity]`; `ostraca ca issue node NAME --ca DIR` creates a new one.",
        }
        ADDRESS_IN_USE = "address-in-use" {
            retry: No,
            happened: "The UDP port is in use. The text names the setting.",
            help: "Stop the other process, or choose another port.",
        }
        CANNOT_LISTEN = "cannot-listen" {
            retry: No,
            happened: "The socket could not be created.",
            help: "Check the address.",
        }
        INVALID_SETTING = "invalid-setting" {
            retry: No,
            happened: "A setting does not fit this machine or another setting: `allocator = \"pooling\"` without enough memory for the pool, `max-live-instances` beyond what `vm.max_map_count` allows.",
            help: "Change the setting that the text names, or the machine's limit.",
        }
        ENGINE_FAILED = "engine-failed" {
            retry: No,
            happened: "The engine for guests could not be created.",
            help: "Report it as a bug, with the text.",
        }
        COMPONENT_CACHE = "component-cache" {
            retry: No,
            happened: "The directory of compiled components cannot be used.",
            help: "Make it writable for this user only, or remove it: it is only a cache.",
        }
        THREAD_FAILED = "thread-failed" {
            retry: Yes,
            happened: "A thread could not be started, or ended early.",
            help: "Check `ulimit -u` and free memory.",
        }
        ROW_CONFLICT = "row-conflict" {
            retry: Yes,
            happened: "Another process changed a row of the cluster while this node was writing it.",
            help: "Start the node again.",
        }
        INVALID_ROW = "invalid-row" {
            retry: No,
            happened: "A row of the cluster is missing, cannot be decoded, or was written by a newer release; or a deployed component is missing or does not compile.",
            help: "Use the release that wrote it. `ostraca repair` shows damaged rows and fixes what it can; else restore the store.",
        }
        STORE_UNREACHABLE = "store-unreachable" {
            retry: Yes,
            happened: "No node under `join` responded, or none that has the store; or the PostgreSQL server, etcd or Kubernetes' API server cannot be reached.",
            help: "Check the addresses under `join`, and that the node with the role `store` is running; or `postgres.url`, `etcd.endpoints` or `kubernetes.url`, and that the servers are running.",
        }
        NAME_IN_USE = "name-in-use" {
            retry: No,
            happened: "Another process uses this node's name and renews its lease, so this one could not register for three leases.",
            help: "Stop the other process. A copied data directory needs its own name and identity: `ostraca init`.",
        }
        NO_STORE_NODE = "no-store-node" {
            retry: Yes,
            happened: "The nodes under `join` responded, but none of them has the store or knows where it is.",
            help: "Name the node with the role `store` under `join`, or start the node again later.",
        }
        STORE_REFUSED = "store-refused" {
            retry: No,
            happened: "The store is not the one that this node used before, or belongs to another cluster (R5); the text says which.",
            help: "Restore the former store, or remove the witness that the text names to accept this one. If the store was replaced while the node ran, `ostraca status` shows this error.",
        }
        STORE_FAILED = "store-failed" {
            retry: YesIf("if the text says `store unavailable`"),
            happened: "The store failed while the node started.",
            help: "Read the reason, fix it, and restart.",
        }
        NODE_FAILED = "node-failed" {
            retry: Yes,
            happened: "A part of the node ended unexpectedly.",
            help: "Restart the node, and report it as a bug.",
        }
        ARBITRATION_LOST = "arbitration-lost" {
            retry: Yes,
            happened: "Exit code 9. Nodes could not reach each other although all reached the store, and another side took the arbiter's lease (`partition.arbiter`). The node stopped its shards, and other nodes serve them.",
            help: "Restore the connection between the nodes' UDP ports, and start the node again.",
        }
        STORE_MISSING = "store-missing" {
            retry: No,
            happened: "There is no store at that path, in that database, or under that prefix or name.",
            help: "Check the configuration; `ostraca init`, or mount the disk.",
        }
        STORE_EXISTS = "store-exists" {
            retry: No,
            happened: "A cluster cannot be created in a database, under a prefix in etcd or under a name in Kubernetes that has the store of another one.",
            help: "Create it in another database, under another prefix or under another name.",
        }
        UNSUITABLE_DATABASE = "unsuitable-database" {
            retry: No,
            happened: "The PostgreSQL server or database is set so that it could lose commits or accepts none, or it or etcd is too old, or Kubernetes' resource versions are not decimal numbers; the text says which.",
            help: "Change what the text names, or use another server.",
        }
        STORE_FAILED_OVER = "store-failed-over" {
            retry: No,
            happened: "Another PostgreSQL server answers than before, or it has gone to another time line (a fail-over or a restore) without synchronous replication: acknowledged turns may be missing (R5).",
            help: "Use the former server. If it is lost, stop all nodes, run `ostraca store accept DIR`, and start them.",
        }
        STORE_ACCESS_DENIED = "store-access-denied" {
            retry: No,
            happened: "PostgreSQL, etcd or Kubernetes refuses the user, the password or the token, or the user lacks a right.",
            help: "Check the section `postgres`, `etcd` or `kubernetes`, and the user's rights there. In Kubernetes, a Role must be bound to the service account.",
        }
        STORE_EMPTY = "store-empty" {
            retry: No,
            happened: "The directory is empty, but a store is expected. One is never created implicitly.",
            help: "`ostraca init`, or mount the disk.",
        }
        NOT_A_STORE = "not-a-store" {
            retry: No,
            happened: "The directory is not empty, but holds no complete store.",
            help: "If its creation was interrupted, remove it and create it again.",
        }
        STORE_IN_USE = "store-in-use" {
            retry: No,
            happened: "Another process has the store open, or nodes renew their leases although all must be stopped; the text names it.",
            help: "Stop that process.",
        }
        STORE_MOVED = "store-moved" {
            retry: No,
            happened: "The store was copied to another place with `ostraca store copy`, and must not be used here any more (R26); the text says where it is.",
            help: "Let the configuration name the new place, or copy the store back.",
        }
        UNFINISHED_COPY = "unfinished-copy" {
            retry: No,
            happened: "The place holds a copy of a store that was interrupted, and its source is another store, or was used since.",
            help: "Continue with the same `ostraca store copy`. If the source was used since, remove the copy (the directory, or the schema `ostraca` of the database) and begin again.",
        }
        COPY_DIFFERS = "copy-differs" {
            retry: No,
            happened: "A copy of a store was read again, and does not hold what its source does. Nothing uses it; the source can still be used.",
            help: "Check disks and memory, remove the copy, and copy again.",
        }
        UNKNOWN_BACKUP = "unknown-backup" {
            retry: No,
            happened: "The directory holds no backup, or none of this name; the text lists those that there are.",
            help: "Check the path, or leave `--backup` out to restore the newest.",
        }
        BACKUP_DAMAGED = "backup-damaged" {
            retry: No,
            happened: "A file of the backup is missing, or does not have its digest.",
            help: "Restore another backup, or another copy of the directory.",
        }
        STORE_UNWRITABLE = "store-unwritable" {
            retry: No,
            happened: "The directory is not writable.",
            help: "Make it writable for this user.",
        }
        FORMAT_NOT_SUPPORTED = "format-not-supported" {
            retry: No,
            happened: "A live node cannot read the format that the cluster should be raised to.",
            help: "Update that node first.",
        }
        INVALID_CLUSTER_SETTING = "invalid-cluster-setting" {
            retry: No,
            happened: "The cluster has no such setting, or its value is invalid or cannot change.",
            help: "`ostraca cluster` shows them.",
        }
        INVALID_POOL = "invalid-pool" {
            retry: No,
            exit: 2,
            happened: "A pool with these properties cannot be created: the text says which one is wrong, or which limit it exceeds.",
            help: "`ostraca pool create --help` lists the properties; `ostraca pool list` shows the pools.",
        }
        POOL_NOT_COPIED = "pool-not-copied" {
            retry: No,
            happened: "A pool cannot be copied to the other one, the copy has failed, or something has to wait until it is done; the text says why. It also says whether both pools are open as before, or stay closed until the copy is continued.",
            help: "Do what the text says, and repeat `ostraca pool copy`.",
        }
        INVALID_PLACEMENT = "invalid-placement" {
            retry: No,
            exit: 2,
            happened: "A shard cannot be where it is wanted: there is no such shard, or the node cannot own it. The text says which one.",
            help: "`ostraca shards` lists the shards, `ostraca nodes` the nodes with their roles and their status.",
        }
        MOVE_TIMEOUT = "move-timeout" {
            retry: Yes,
            happened: "Shards were not moved in time. Those that are being handed off still move; no others do.",
            help: "Repeat the command. `ostraca events` shows why hand-offs failed; `ostraca shards pin` moves shards as soon as they can move.",
        }
        INVALID_NAMESPACE = "invalid-namespace" {
            retry: No,
            exit: 2,
            happened: "A namespace cannot have this name.",
            help: "Use 1 to 32 lower-case letters, digits and `-`, and begin with a letter.",
        }
        TOO_MANY_NAMESPACES = "too-many-namespaces" {
            retry: No,
            exit: 2,
            happened: "The cluster has 1,000 namespaces beside `default`.",
            help: "Use another cluster for further tenants.",
        }
        POOL_IMMUTABLE = "pool-immutable" {
            retry: No,
            happened: "The cluster has a pool with this name that differs. A pool never changes: the shards of its entities depend on it (R23).",
            help: "Create a pool with another name.",
        }
        SETTING_MISMATCH = "setting-mismatch" {
            retry: No,
            happened: "A node's configuration sets a setting of the cluster to another value.",
            help: "Remove it from the node's file, or change the cluster's with `ostraca cluster --set`.",
        }
        STORE_NEWER_FORMAT = "store-newer-format" {
            retry: No,
            happened: "A newer release wrote the store.",
            help: "Use that release.",
        }
        STORE_OLDER_FORMAT = "store-older-format" {
            retry: No,
            happened: "A program from before the first release wrote the store.",
            help: "Recreate the cluster with `ostraca init`.",
        }
        STORE_CLUSTER_MISMATCH = "store-cluster-mismatch" {
            retry: No,
            happened: "The store belongs to another cluster; the text names it.",
            help: "Check `data`, `postgres.url` and the section `etcd` or `kubernetes` in the configuration.",
        }
        STORE_MISMATCH = "store-mismatch" {
            retry: No,
            happened: "The store is not the one that this node used before, or the store of the state is not the one that the cluster's rows name; the text says which.",
            help: "Restore the former one, or remove the witness to accept this one. If the rows name another one, check which stores the configuration combines.",
        }
        STORE_FORKED = "store-forked" {
            retry: No,
            happened: "The store is a copy, and the original was opened since.",
            help: "Use the original, or remove the witness to accept that the copy may lack acknowledged turns.",
        }
        STORE_ROLLED_BACK = "store-rolled-back" {
            retry: No,
            happened: "The store was rolled back: acknowledged turns are missing.",
            help: "Restore the newer copy, or remove the witness, if the text names one, to accept their loss.",
        }
        INVALID_WITNESS = "invalid-witness" {
            retry: No,
            happened: "The witness cannot be read.",
            help: "Restore it, or remove it to continue without the check.",
        }
        STORE_CORRUPT = "store-corrupt" {
            retry: No,
            happened: "The store's data cannot be read.",
            help: "Restore it from a copy.",
        }
        STORE_IO = "store-io" {
            retry: No,
            happened: "A file operation failed.",
            help: "Read the system's error in the text.",
        }
    }
}
