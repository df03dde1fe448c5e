//! Refusals of a component, its manifest or an admin request.

section! {
    class: Deploying,
    outcome: NoMessage,
    codes: {
        INVALID_MANIFEST = "invalid-manifest" {
            retry: No,
            exit: 2,
            happened: "The manifest has an unknown key, a wrong type, a missing key, or a value out of range. The line is marked, and the nearest key suggested.",
            help: "Fix the line.",
        }
        INVALID_POLICY = "invalid-policy" {
            retry: No,
            exit: 2,
            happened: "The policy has an unknown key, role or permission, or a principal or pattern that means nothing. The line is marked, and the nearest name suggested.",
            help: "Fix the line. `ostraca policy check FILE` checks a file without a cluster.",
        }
        POLICY_LOCK_OUT = "policy-lock-out" {
            retry: No,
            exit: 2,
            happened: "Under the new policy, the principal that sets it could not change it again.",
            help: "Grant it a role with `administer` on all types, or set the policy with `--force`. A node's own identity can always change it: `ostraca policy set FILE --as-node CONFIG`.",
        }
        POLICY_CHANGED = "policy-changed" {
            retry: No,
            exit: 2,
            happened: "The policy has another revision than the one that `--expect-revision` names: somebody else has changed it.",
            help: "Read it again with `ostraca policy show`, and repeat the change.",
        }
        INVALID_CREDENTIAL = "invalid-credential" {
            retry: No,
            exit: 2,
            happened: "What is to be revoked is not a principal, a certificate or a token.",
            help: "Write `client/NAME`, `token/ISSUER/SUBJECT`, `token-id/ISSUER/ID`, or use `ostraca revoke --certificate FILE`.",
        }
        AUTHORITY_IN_USE = "authority-in-use" {
            retry: No,
            exit: 2,
            happened: "An authority that the cluster should no longer trust has issued certificates that are still needed: those of the nodes that the message names, or the caller's own.",
            help: "Run `ostraca ca rotate` again while these nodes run. `ostraca forget` nodes that are gone for good. For your own certificate, use `ostraca ca issue client NAME --ca DIR`. With `--force`, those who still need it are shut out.",
        }
        INVALID_VARIABLE = "invalid-variable" {
            retry: No,
            exit: 2,
            happened: "The name of a type, a secret or a setting is invalid; a secret is empty, not UTF-8, or cannot be sealed; or the value to remove is not set.",
            help: "A name has 1 to 64 letters, digits, dots, dashes and underscores, and starts with a letter or digit. Encode a secret that is not UTF-8, for example in base64. To remove a secret, use `ostraca secret remove`.",
        }
        VARIABLES_TOO_LARGE = "variables-too-large" {
            retry: No,
            exit: 2,
            happened: "The secrets and settings of a type would together exceed 64 KiB, the size of a row of the cluster; or 100 types that are not deployed have secrets or settings already.",
            help: "Remove some, or keep large values elsewhere and only their keys here. `ostraca undeploy TYPE` removes all values of a type that is not deployed.",
        }
        NO_SECRET_KEY = "no-secret-key" {
            retry: No,
            exit: 2,
            happened: "The node has no key for secrets: the file that `identity.secret-keys` names does not exist.",
            help: "Copy `ca/secret.key` from another node to this one, and restart this one. If no node has the file, create it with `ostraca secret key --ca DIR` and copy it to all nodes.",
        }
        TOO_MANY_REVOCATIONS = "too-many-revocations" {
            retry: No,
            exit: 2,
            happened: "All revocations together exceed the size of a row of the cluster, 64 KiB.",
            help: "Restore credentials that have expired by now, or revoke a principal instead of each of its certificates.",
        }
        NOT_SUPPORTED_YET = "not-supported-yet" {
            retry: No,
            exit: 2,
            happened: "The manifest or the configuration uses a feature that this release does not support: a grant of `topics`, or another namespace in a node's configuration.",
            help: "Leave it out.",
        }
        NOT_WASM = "not-wasm" {
            retry: No,
            exit: 2,
            happened: "The file is not WebAssembly.",
            help: "Deploy a component.",
        }
        CORE_MODULE = "core-module" {
            retry: No,
            exit: 2,
            happened: "It is a core module, not a component.",
            help: "`ostraca build` converts it into one.",
        }
        INVALID_COMPONENT = "invalid-component" {
            retry: No,
            exit: 2,
            happened: "It does not validate, or does not compile.",
            help: "Build it again; the text says what is wrong.",
        }
        TOO_MANY_CORE_INSTANCES = "too-many-core-instances" {
            retry: No,
            exit: 2,
            happened: "One instance of it creates more core instances than `components.core-instances`; nested components count each time they are instantiated. Nothing was compiled.",
            help: "Link its modules into fewer ones, compose fewer components, or raise the setting on every node: an instance of more than 64 runs outside the pool.",
        }
        TOO_MANY_COMPONENT_INSTANCES = "too-many-component-instances" {
            retry: No,
            exit: 2,
            happened: "The same for component instances, `components.component-instances`.",
            help: "Compose fewer components, or raise the setting on every node.",
        }
        TOO_MANY_MEMORIES = "too-many-memories" {
            retry: No,
            exit: 2,
            happened: "The same for memories, `components.memories`.",
            help: "Compose components that share one, or raise the setting on every node.",
        }
        TOO_MANY_TABLES = "too-many-tables" {
            retry: No,
            exit: 2,
            happened: "The same for tables, `components.tables`.",
            help: "Compose fewer components, or raise the setting on every node.",
        }
        TOO_MANY_FUNCTIONS = "too-many-functions" {
            retry: No,
            exit: 2,
            happened: "The same for core functions, `components.functions`.",
            help: "Leave out what is not needed, or raise the setting on every node.",
        }
        TOO_MANY_TYPES = "too-many-types" {
            retry: No,
            exit: 2,
            happened: "The same for types, `components.types`.",
            help: "Compose fewer components, or raise the setting on every node.",
        }
        TOO_MANY_DEFINITIONS = "too-many-definitions" {
            retry: No,
            exit: 2,
            happened: "The same for imports, exports, aliases, arguments and canonical functions, `components.definitions`.",
            help: "Compose fewer components, or raise the setting on every node.",
        }
        UNSIZED_INSTANTIATION = "unsized-instantiation" {
            retry: No,
            exit: 2,
            happened: "It instantiates a core module or component that is imported, or exported by another instance, so its size cannot be determined.",
            help: "Compose it so that each part is nested where it is instantiated.",
        }
        COMPILE_TIME_LIMIT = "compile-time-limit" {
            retry: No,
            exit: 2,
            happened: "The compiler took longer than `compiler.timeout` and was killed. The node is not affected.",
            help: "Split its largest functions, leave out what is not needed, or raise the setting on every node.",
        }
        COMPILE_MEMORY_LIMIT = "compile-memory-limit" {
            retry: No,
            exit: 2,
            happened: "The compiler needed more memory than `compiler.max-memory`. The node is not affected.",
            help: "Split its largest functions, leave out what is not needed, or raise the setting on every node.",
        }
        COMPILER_CRASHED = "compiler-crashed" {
            retry: No,
            happened: "The compiler's process was killed by a signal or failed; the text has the end of its output. The node is not affected.",
            help: "If other components compile, report it as a bug, with this component. If it was killed because memory ran out, try again.",
        }
        COMPILER_UNAVAILABLE = "compiler-unavailable" {
            retry: No,
            happened: "The compiler's process could not be started, or belongs to another release.",
            help: "Fix `compiler.program`; a program that embeds a node calls `ostraca_node::compiler_main()` first in `main`.",
        }
        MEMORY_CEILING = "memory-ceiling" {
            retry: No,
            exit: 2,
            happened: "The manifest's `limits.memory` is beyond the node's `guests.memory-ceiling`.",
            help: "Lower it, or raise the ceiling on every node.",
        }
        TURN_TIME_CEILING = "turn-time-ceiling" {
            retry: No,
            exit: 2,
            happened: "The manifest's `limits.turn-time` is beyond the node's `guests.turn-time-ceiling`.",
            help: "Lower it, or raise the ceiling on every node.",
        }
        COMPONENT_TOO_LARGE = "component-too-large" {
            retry: No,
            exit: 2,
            happened: "It is larger than `guests.component-limit`.",
            help: "Strip it, or raise the setting.",
        }
        MISSING_EXPORT = "missing-export" {
            retry: No,
            exit: 2,
            happened: "It does not export `ostraca:entity/methods` or `handler`.",
            help: "Use the SDK, or implement the world in `wit/`.",
        }
        IMPORT_NOT_GRANTED = "import-not-granted" {
            retry: No,
            exit: 2,
            happened: "It imports something that entities do not have.",
            help: "Import only what [guests.md](guests.md) lists.",
        }
        WRONG_SIGNATURE = "wrong-signature" {
            retry: No,
            exit: 2,
            happened: "An export has the right name but a wrong type.",
            help: "Build against the `wit/` of this release.",
        }
        INVALID_METHODS = "invalid-methods" {
            retry: No,
            exit: 2,
            happened: "`methods` failed, or its list cannot be used: an empty or duplicate name, a name with a control character, or too many methods.",
            help: "Fix the guest.",
        }
        UNKNOWN_REVISION = "unknown-revision" {
            retry: No,
            exit: 2,
            happened: "The type has no stored revision with that number, or none before the current one. A type keeps up to 16 earlier revisions and 4 inactive ones.",
            help: "`ostraca deployments TYPE` lists them. Otherwise deploy the component again.",
        }
        ROLLOUT_COMPLETE = "rollout-complete" {
            retry: No,
            exit: 2,
            happened: "The rollout of the current revision is complete: it cannot be reduced to a part of the entities again.",
            help: "`ostraca rollback`, or begin the rollout when you activate a revision.",
        }
        NOTHING_ACTIVE = "nothing-active" {
            retry: No,
            exit: 2,
            happened: "`deploy --inactive` for a type that has no active revision.",
            help: "Deploy its first revision without `--inactive`.",
        }
        SCHEMA_GOES_BACK = "schema-goes-back" {
            retry: No,
            exit: 2,
            happened: "The component's schema is lower than that of the current revision, and its `newest-schema` is too: its entities would not run.",
            help: "Deploy a component that migrates back: its `newest-schema` is at least the schema of the current revision.",
        }
        TOO_MANY_SCHEMAS = "too-many-schemas" {
            retry: No,
            exit: 2,
            happened: "The type already keeps the last revisions of 16 earlier schemas.",
            help: "Deploy with the schema of the current revision.",
        }
        INVALID_SCHEMA_VERSION = "invalid-schema-version" {
            retry: No,
            exit: 2,
            happened: "`schema-version` or `newest-schema` failed, or `newest-schema` is below `schema-version`.",
            help: "Fix the guest.",
        }
        INVALID_SCHEMAS = "invalid-schemas" {
            retry: No,
            exit: 2,
            happened: "`schemas` failed, or its list cannot be used: an unknown or duplicate method, or a text that is neither a JSON object nor a boolean.",
            help: "Fix the guest, or leave the export out (`#[entity(schemas = false)]`).",
        }
        SCHEMAS_TOO_LARGE = "schemas-too-large" {
            retry: No,
            exit: 2,
            happened: "The JSON Schemas of the component's methods are too large.",
            help: "Use simpler types in the methods' signatures, leave the schemas out (`#[entity(schemas = false)]`), or raise `schema-bytes` in `[components]`.",
        }
        ENCODE_FAILED = "encode-failed" {
            retry: No,
            happened: "The core module could not be converted into a component.",
            help: "Build it with the SDK; check that it exports what the SDK exports.",
        }
        UNKNOWN_POOL = "unknown-pool" {
            retry: No,
            exit: 2,
            happened: "The cluster has no pool with this name.",
            help: "`ostraca pool list` shows the pools, and `ostraca pool create` creates one. A type without `pool` is in the pool `default`.",
        }
        REVISION_MISMATCH = "revision-mismatch" {
            retry: No,
            happened: "`--expect-revision` is not the current revision, or another client deployed the type concurrently.",
            help: "Check `ostraca deployments`, then decide.",
        }
        DEPLOYMENT_TOO_LARGE = "deployment-too-large" {
            retry: No,
            happened: "The manifest and the methods (names, summaries, schemas) take more than 64 KiB together.",
            help: "Shorten the manifest.",
        }
        TYPE_IN_USE = "type-in-use" {
            retry: No,
            happened: "A type cannot be undeployed while something of it is left: an entity, records that a deletion has yet to remove, tells that have yet to leave, or dead letters. The text names one entity.",
            help: "Delete its entities with `ostraca undeploy TYPE --delete-state`, or one by one, and drop its dead letters.",
        }
        BINDING_IMMUTABLE = "binding-immutable" {
            retry: No,
            happened: "`pool` and `shard-key` of a type are fixed from its first deployment.",
            help: "Keep them, or deploy under another type name.",
        }
        INVALID_DIGEST = "invalid-digest" {
            retry: No,
            happened: "The component does not match the announced BLAKE3 digest, or the digest is not 32 bytes.",
            help: "Send it again.",
        }
        UNKNOWN_REQUEST = "unknown-request" {
            retry: No,
            happened: "The node does not support this request.",
            help: "Use compatible versions of client and node.",
        }
        INVALID_REQUEST = "invalid-request" {
            retry: No,
            exit: 2,
            happened: "A field of the request is invalid, such as a name that is empty or too long. The text names it.",
            help: "Fix it.",
        }
    }
}
