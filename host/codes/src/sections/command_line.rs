//! Errors of the `ostraca` command.

section! {
    class: CommandLine,
    outcome: NoMessage,
    codes: {
        INVALID_ENTITY = "invalid-entity" {
            retry: No,
            exit: 2,
            happened: "The entity is not written as TYPE/ID.",
            help: "Write it as in `counter/alice`.",
        }
        INVALID_JSON = "invalid-json" {
            retry: No,
            exit: 2,
            happened: "The arguments are not JSON. The position is marked.",
            help: "Text needs double quotes within single ones: `'\"text\"'`.",
        }
        SCHEMA_MISMATCH = "schema-mismatch" {
            retry: No,
            exit: 2,
            happened: "The arguments do not fit the JSON Schema that the method's component exports. Nothing was sent.",
            help: "The text names the place. `ostraca methods TYPE` shows the method. `--no-check` sends the message anyway.",
        }
        INVALID_NAME = "invalid-name" {
            retry: No,
            exit: 2,
            happened: "The name is not a valid project name.",
            help: "Use lower-case letters, digits and dashes, starting with a letter.",
        }
        UNKNOWN_NODE = "unknown-node" {
            retry: No,
            exit: 2,
            happened: "The cluster has no node of that name. The nearest name is in the help.",
            help: "`ostraca nodes` lists them.",
        }
        NODE_LIVE = "node-live" {
            retry: No,
            exit: 2,
            happened: "The node is live, so it cannot be forgotten.",
            help: "Stop it first; a dead node is marked dead within seconds.",
        }
        OWNER_UNRESPONSIVE = "owner-unresponsive" {
            retry: Yes,
            exit: 3,
            happened: "The responding node is healthy, but the owner of the requested entities did not respond to it. The text names the owner and the reason. Stored data was shown.",
            help: "`ostraca nodes` shows the owner's status. If it is dead, its shards have other owners within seconds: try again.",
        }
        NODE_NOT_LIVE = "node-not-live" {
            retry: No,
            exit: 2,
            happened: "The node is not live, so it owns no shards.",
            help: "`ostraca nodes` shows the status of nodes.",
        }
        UNKNOWN_SHARD = "unknown-shard" {
            retry: No,
            exit: 2,
            happened: "The shard does not exist.",
            help: "Shards are counted from 1; the text has their number.",
        }
        INVALID_CURSOR = "invalid-cursor" {
            retry: No,
            exit: 2,
            happened: "The text is not a cursor that a previous page or an item had.",
            help: "Use one that was printed, unchanged, or leave it out.",
        }
        NO_OTHER_HOST = "no-other-host" {
            retry: No,
            exit: 1,
            happened: "The drain cannot complete: no other live node with the role `host` can take the shards.",
            help: "Start one, or cancel the drain with `--undo`.",
        }
        DRAIN_TIMEOUT = "drain-timeout" {
            retry: Yes,
            exit: 1,
            happened: "The node still owned shards when `--timeout` had passed. The drain continues.",
            help: "Run the command again, or cancel the drain with `--undo`.",
        }
        INVALID_LOG_FILTER = "invalid-log-filter" {
            retry: No,
            exit: 2,
            happened: "`--log` or `RUST_LOG` is not a valid filter.",
            help: "Write it as in `info,ostraca_gateway=debug`.",
        }
        FILE_EXISTS = "file-exists" {
            retry: No,
            exit: 2,
            happened: "A file of that name exists.",
            help: "Choose another name or directory.",
        }
        NO_MANIFEST = "no-manifest" {
            retry: No,
            exit: 2,
            happened: "The directory has no `entity.toml`.",
            help: "Name a directory that has one; `ostraca new NAME` creates one.",
        }
        NO_COMPONENT = "no-component" {
            retry: No,
            exit: 2,
            happened: "The component that the manifest names does not exist.",
            help: "`ostraca build`, or fix `component`.",
        }
        UNKNOWN_PROJECT = "unknown-project" {
            retry: No,
            exit: 2,
            happened: "`ostraca build` found none of `Cargo.toml`, `package.json`, `pyproject.toml` and `src/entity.c`; or the second or third does not name the entity's module.",
            help: "Name it as the text says, or build with the language's own tools, then deploy.",
        }
        NO_CDYLIB = "no-cdylib" {
            retry: No,
            exit: 2,
            happened: "The project does not produce a WebAssembly module.",
            help: "Add `[lib] crate-type = [\"cdylib\", \"rlib\"]`.",
        }
        BUILD_FAILED = "build-failed" {
            retry: No,
            exit: 2,
            happened: "A tool that builds the project failed; its output is above.",
            help: "Fix the errors, build again.",
        }
        NO_CARGO = "no-cargo" {
            retry: No,
            exit: 1,
            happened: "Cargo or rustc cannot be run.",
            help: "Install Rust.",
        }
        NO_BUILD_TOOL = "no-build-tool" {
            retry: No,
            exit: 1,
            happened: "A tool that builds the project cannot be run.",
            help: "Install it, as the text says.",
        }
        NO_WASM_TARGET = "no-wasm-target" {
            retry: No,
            exit: 1,
            happened: "The Rust target for guests is not installed.",
            help: "`rustup target add wasm32-unknown-unknown`.",
        }
        OUTPUT_WRITE_FAILED = "output-write-failed" {
            retry: No,
            exit: 1,
            happened: "The command succeeded, but its result could not be written to standard output.",
            help: "Check its destination: is the disk full?",
        }
        SIGNAL_HANDLER_FAILED = "signal-handler-failed" {
            retry: No,
            exit: 1,
            happened: "The process cannot listen for signals.",
            help: "Report it as a bug.",
        }
    }
}
