//! Problems of a running node or cluster.

section! {
    class: Status,
    outcome: NoMessage,
    codes: {
        NO_STORE = "no-store" {
            retry: No,
            happened: "A backup was requested from a node that does not have the cluster's store, or whose store does not have all of it.",
            help: "Connect to the node with the role `store`. If the stores are in PostgreSQL, back them up there.",
        }
        UNKNOWN_STORE = "unknown-store" {
            retry: No,
            happened: "A store of the state is named whose database is not configured on this node; the text says which.",
            help: "Add the database to `postgres.databases` in the configuration of every node, and restart them.",
        }
        MOVE_IN_PROGRESS = "move-in-progress" {
            retry: YesIf("after that move"),
            happened: "A range of shards was to be moved to another database while another move has not ended.",
            help: "`ostraca store move` without a range shows the move in progress, and completes it.",
        }
        STORE_STOPPED = "store-stopped" {
            retry: No,
            happened: "A write or a sync of the store failed. The store has stopped writing, since the state of the disk is unknown. Nothing acknowledged is lost.",
            help: "Fix the disk, then restart the node.",
        }
        STORE_DISK_LOW = "store-disk-low" {
            retry: YesIf("with the disk"),
            happened: "Free disk space is below `store.low-water-bytes`: writes and components are refused (`store-full`); leases and claims continue. Reported by the node that runs the store.",
            help: "Free disk space, or lower the setting.",
        }
        LEASE_LAPSED = "lease-lapsed" {
            retry: YesIf("with the store"),
            happened: "The node's lease was not renewed for its whole length, or the node has not been able to register since it started. Its shards are suspended until it does.",
            help: "Check the store: it is slow, has stopped, or is full ([stores](stores.md)).",
        }
        SHARDS_NOT_SERVING = "shards-not-serving" {
            retry: Yes,
            happened: "Some shards are not claimed yet.",
            help: "Wait a few seconds. If this persists, check the store.",
        }
        SUSPENDED = "suspended" {
            retry: Yes,
            happened: "The node's lease had lapsed and is valid again. Before its shards resume, it reads their claims back.",
            help: "Wait a few seconds. If this persists, check the node that runs the store.",
        }
        NO_MANAGER = "no-manager" {
            retry: Yes,
            happened: "No live node is the manager. Messages flow to shards that have an owner; shards without one get none.",
            help: "Start a node with the role `manager`. A dead manager is replaced within seconds.",
        }
        SHARDS_UNASSIGNED = "shards-unassigned" {
            retry: Yes,
            happened: "Some shards have no live owner. Messages to them are buffered, for at most `gateway.buffer-timeout`.",
            help: "Wait a few seconds. If this persists, start a node with the role `host`.",
        }
        POOL_CLOSED = "pool-closed" {
            retry: Yes,
            happened: "The copy of a pool to another one is unfinished. Until it is done, nobody owns the shards of either, and messages to their entities are buffered, for at most `gateway.buffer-timeout`.",
            help: "Wait until it is done. If it was interrupted, repeat `ostraca pool copy`: it continues the copy.",
        }
        UNRUNNABLE_TYPE = "unrunnable-type" {
            retry: No,
            happened: "A live host cannot run a deployed type. Its shards go to hosts that can, if there are any. Reported by the manager; the host itself reports `type-broken`.",
            help: "Its `ostraca status` shows why. Deploy a component that every host can run.",
        }
        PANICS = "panics" {
            retry: No,
            happened: "The node has contained panics of its own code since it started; `contained_panics` counts them.",
            help: "Report them as bugs, with the node's log.",
        }
        NODE_DEAD = "node-dead" {
            retry: No,
            happened: "A node was marked dead: its lease lapsed. Its shards have other owners.",
            help: "Start it again. If it is gone for good: `ostraca forget NODE`.",
        }
        NODE_UNREACHABLE = "node-unreachable" {
            retry: YesIf("with the network"),
            happened: "The responding node has had no connection to a live node for 3 s. Messages to shards there are buffered. A killed node appears here until it is marked dead.",
            help: "Check the network between the two; the text names both.",
        }
        STORE_UNRESPONSIVE = "store-unresponsive" {
            retry: YesIf("with the store"),
            happened: "A node renews its lease, but its EntityStore calls get no response. It releases its shards.",
            help: "Check the network between it and the node that runs the store.",
        }
        STOPPED_LIMIT = "stopped-limit" {
            retry: No,
            happened: "More entities of a shard failed than it can keep stopped (`entities.max-stopped`): those that were stopped first may have started again.",
            help: "Fix the type: deploy another revision. Or raise `entities.max-stopped`.",
        }
        ENTITIES_FAILING = "entities-failing" {
            retry: No,
            happened: "Entities of a type on the responding node keep failing (three times in a row, or `state-does-not-decode` once). The text counts them by code and names one.",
            help: "`ostraca inspect` shows its error. If it came with a new component, deploy the previous one again.",
        }
        TYPE_BROKEN = "type-broken" {
            retry: No,
            happened: "A deployed type cannot be run on this node; the text says why.",
            help: "Deploy it again.",
        }
        ALLOCATOR_FALLBACK = "allocator-fallback" {
            retry: No,
            happened: "The pooling allocator is unavailable; instances are allocated on demand, which is slower.",
            help: "Fix what the text names; `allocator = \"pooling\"` makes it an error at start.",
        }
    }
}
