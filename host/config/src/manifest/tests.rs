use super::*;

const SMALL: &str = "type = \"counter\"\ncomponent = \"c.wasm\"\n";

fn refused(more: &str) -> ManifestError {
    Manifest::parse(&format!("{SMALL}{more}"), "entity.toml").expect_err(more)
}

#[test]
fn two_lines_are_a_manifest_with_the_default_limits() {
    let manifest = Manifest::parse(SMALL, "entity.toml").expect("a manifest");
    assert_eq!(manifest.wasm_limits(), ostraca_wasm::InstanceLimits::default());
    assert_eq!((manifest.pool.as_str(), &manifest.shard_key), ("default", &ShardKeyRule::Id));
    assert_eq!((manifest.limits.message, manifest.limits.mailbox), (1 << 20, 1_000));
    assert_eq!(
        manifest.lifecycle,
        Lifecycle {
            idle_timeout: Duration::from_secs(120),
            remember_entities: false,
            time_to_live: Duration::ZERO,
            on_failure: OnFailure::Restart,
        }
    );
    assert!(manifest.access.allows("client/anybody"));
}

#[test]
fn the_effective_text_parses_to_the_same_manifest() {
    let text = format!(
        "{SMALL}shard-key = \"until:/\"\n[lifecycle]\nidle-timeout = \"5 s\"\ntime-to-live = \"30 days\"\n"
    );
    let manifest = Manifest::parse(&text, "entity.toml").expect("a manifest");
    let again = Manifest::parse(&manifest.effective_toml(), "entity.toml");
    assert_eq!(again.expect("a manifest"), manifest);
}

#[test]
fn unsupported_features_are_refused_and_not_ignored() {
    let error = refused("[grants]\ntopics = [\"news\"]");
    assert_eq!((error.code(), error.line()), (codes::NOT_SUPPORTED_YET, Some(4)), "{error}");
}

#[test]
fn k33_a_manifest_chooses_what_follows_a_failure() {
    let strategies = [
        ("restart", OnFailure::Restart),
        ("resume", OnFailure::Resume),
        ("stop", OnFailure::Stop),
        ("escalate", OnFailure::Escalate),
    ];
    for (name, strategy) in strategies {
        let text = format!("{SMALL}[lifecycle]\non-failure = \"{name}\"\n");
        let manifest = Manifest::parse(&text, "entity.toml").expect("a manifest");
        assert_eq!(manifest.lifecycle.on_failure, strategy);
        let again = Manifest::parse(&manifest.effective_toml(), "entity.toml");
        assert_eq!(again.expect("a manifest"), manifest);
    }
}

#[test]
fn r20_a_manifest_makes_queries_reentrant() {
    let manifest = Manifest::parse(&format!("{SMALL}reentrant = \"queries\"\n"), "entity.toml");
    let manifest = manifest.expect("a manifest");
    assert!(manifest.reentrant_queries);
    let again = Manifest::parse(&manifest.effective_toml(), "entity.toml");
    assert_eq!(again.expect("a manifest"), manifest);
    let plain = Manifest::parse(SMALL, "entity.toml").expect("a manifest");
    assert!(!plain.reentrant_queries && !plain.effective_toml().contains("reentrant"));
}

#[test]
fn each_error_names_its_line() {
    let cases = [
        ("reentrant = \"commands\"", 3, "`reentrant` cannot be \"commands\""),
        ("idle = \"1 s\"", 3, "unknown key `idle`"),
        ("[limit]", 3, "unknown key `limit`"),
        ("[limits]\nmemory = 16", 4, "a size in quotes"),
        ("[limits]\nturn-time = \"1 year\"", 4, "`turn-time` must be from 1 ms to 1 min"),
        ("[limits]\nmailbox = 0", 4, "`mailbox` must be from 1"),
        ("[limits]\nsubscriptions = 100001", 4, "`subscriptions` must be from 1"),
        ("[limits]\nkeys = 0", 4, "`keys` must be from 1"),
        ("[limits]\nlog-lines-per-second = 0", 4, "`log-lines-per-second` must be from 1"),
        ("[limits]\nlog-line-bytes = \"1 B\"", 4, "`log-line-bytes` must be from 16 B"),
        ("[limits]\nturn-keys = 20000", 4, "`turn-keys` must be from 1 to 16384"),
        ("[limits]\nturn-bytes = \"9 MiB\"", 4, "`turn-bytes` must be from 1 B to 8 MiB"),
        ("[limits]\nreply = \"5 MiB\"", 4, "`reply` must be from 1 B to 4 MiB"),
        ("[limits]\njournal = \"1025 GiB\"", 4, "`journal` must be from 1 B to 1024 GiB"),
        ("[limits]\nchannels = 65", 4, "`channels` must be from 1 to 64"),
        ("[limits]\nitems = 1001", 4, "`items` must be from 1 to 1000"),
        ("[limits]\nitem = \"2 MiB\"", 4, "`item` must be from 1 B to 1 MiB"),
        ("[channels]\nkeep-items = 100001", 4, "`keep-items` must be from 0 to 100000"),
        ("[channels]\nkeep-bytes = \"2 GiB\"", 4, "`keep-bytes` must be from 1 B to 1 GiB"),
        ("[limits]\nasks = 10001", 4, "`asks` must be from 1 to 10000"),
        ("[limits]\nask-bytes = \"65 MiB\"", 4, "`ask-bytes` must be from 1 B to 64 MiB"),
        ("[limits]\nask-timeout = \"6 min\"", 4, "`ask-timeout` must be from 1 ms to 5 min"),
        ("[lifecycle]\non-failure = \"halt\"", 4, "\"halt\" is not a strategy"),
        ("[grants]\nask = [\"a b\"]", 4, "\"a b\" is not the name of a type"),
        (
            "[lifecycle]\ntime-to-live = \"10 ms\"",
            4,
            "`time-to-live` must be from 1 s to 36500 days",
        ),
        ("[limits]\nhttp-calls = 1001", 4, "`http-calls` must be from 1 to 1000"),
        ("[limits]\nhttp-bytes = \"65 MiB\"", 4, "`http-bytes` must be from 1 B to 64 MiB"),
        ("[limits]\nhttp-timeout = \"6 min\"", 4, "`http-timeout` must be from 1 ms to 5 min"),
        ("[grants]\nhttp = [\"*.a.org\"]", 4, "\"*.a.org\" is not the name of a host"),
        ("shard-key = \"ids\"", 3, "not a shard key"),
        ("pool = \"a b\"", 3, "`pool` must be 1 to 64"),
        ("[access]\nsend = [\"everybody\"]", 4, "does not name a principal"),
        ("[life", 3, "unclosed table"),
    ];
    for (more, line, expected_text) in cases {
        let error = refused(more);
        assert!(error.to_string().contains(expected_text), "{error}");
        assert_eq!((error.line(), error.code()), (Some(line), codes::INVALID_MANIFEST), "{error}");
    }
    for (text, expected_text) in
        [("", "`type` is required"), ("type = \"a\"", "`component` is required")]
    {
        let error = Manifest::parse(text, "entity.toml").expect_err(text);
        assert!(error.to_string().contains(expected_text), "{error}");
    }
}

#[test]
fn a_turn_that_may_tell_fits_into_one_commit() {
    let text = |outbox: &str| {
        format!(
            "[limits]\nturn-bytes = \"6 MiB\"\nreply = \"4 MiB\"\noutbox-bytes = \"{outbox}\"\n"
        )
    };
    let granted = "[grants]\ntell = [\"counter\"]\n";
    let error = refused(&format!("{}{granted}", text("3 MiB")));
    assert_eq!((error.code(), error.line()), (codes::INVALID_MANIFEST, Some(6)), "{error}");
    assert!(error.to_string().contains("turns of 13 MiB; one commit holds 12 MiB"), "{error}");
    for more in [format!("{}{granted}", text("2 MiB")), text("3 MiB")] {
        Manifest::parse(&format!("{SMALL}{more}"), "entity.toml").expect("a manifest");
    }
}

#[test]
fn http_grants_are_exact_hosts() {
    let parse = |granted: &str| {
        let text = format!("{SMALL}[grants]\nhttp = [{granted:?}]\n");
        Manifest::parse(&text, "entity.toml")
    };
    for granted in [
        "api.example.com",
        "api.example.com:8443",
        "localhost:80",
        "a_b-c",
        "10.0.0.1",
        "[2001:db8::1]",
        "[::1]:8080",
    ] {
        let manifest = parse(granted).expect(granted);
        assert_eq!(manifest.wasm_limits().http, [granted]);
        let again = Manifest::parse(&manifest.effective_toml(), "entity.toml");
        assert_eq!(again.expect("a manifest"), manifest);
    }
    for wrong in [
        "",
        "*",
        "*.example.com",
        "API.example.com",
        "https://example.com",
        "example.com/path",
        "user@example.com",
        "example.com.",
        "example..com",
        "example.com:",
        "example.com:0",
        "example.com:080",
        "example.com:65536",
        "::1",
        "[::1",
        "[::0:1]",
        "[::1]8080",
        "m\u{fc}nchen.example",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn access_is_granted_by_name_by_role_or_to_all() {
    let with = |send: &str| {
        let text = format!("{SMALL}[access]\nsend = {send}\n");
        Manifest::parse(&text, "entity.toml").expect("a manifest").access
    };
    assert!(with("[\"*\"]").allows("client/alice"));
    assert!(with("[\"client/*\"]").allows("client/alice"));
    assert!(!with("[\"client/*\"]").allows("node/n1"));
    assert!(with("[\"client/alice\"]").allows("client/alice"));
    assert!(!with("[\"client/alice\"]").allows("client/alicia"));
    assert!(!with("[]").allows("client/alice"));
}

#[test]
fn a_manifest_that_is_too_long_is_not_read() {
    assert!(refused(&"#".repeat(MAX_MANIFEST_BYTES)).to_string().contains("exceed the limit"));
}

#[test]
fn a_deeply_nested_manifest_is_refused_by_name() {
    let nested =
        |open: &str, close: &str| format!("x = {}1{}\n", open.repeat(10_000), close.repeat(10_000));
    for more in [
        nested("[", "]"),
        nested("{a=", "}"),
        format!("x{} = 1\n", ".a".repeat(10_000)),
        format!("[x{}]\n", ".a".repeat(10_000)),
        format!("[[x{}]]\n", ".a".repeat(10_000)),
    ] {
        let error = refused(&more);
        assert_eq!(error.code(), "invalid-manifest");
        assert!(error.to_string().ends_with(": nested too deeply"), "{error}");
    }
}

#[test]
fn a_manifest_names_its_namespace() {
    let text = format!(
        "namespace = \"acme\"\n{SMALL}[grants]\ntell = [\"cart\"]\n[access]\nsend = [\"client/*\", \"entity/cart\"]\n"
    );
    let manifest = Manifest::parse(&text, "entity.toml").expect("a manifest");
    assert_eq!(manifest.entity_type, "acme:counter");
    // A guest knows its namesakes by their local names, and the cluster its senders by their whole names.
    assert_eq!(manifest.wasm_limits().tell, ["cart"]);
    assert!(manifest.access.allows("client/a") && manifest.access.allows("entity/acme:cart"));
    assert!(!manifest.access.allows("entity/cart") && !manifest.access.allows("entity/evil:cart"));
    let again = Manifest::parse(&manifest.effective_toml(), "entity.toml");
    assert_eq!(again.expect("a manifest"), manifest);
    let plain = Manifest::parse(&format!("namespace = \"default\"\n{SMALL}"), "entity.toml");
    assert_eq!(plain.expect("a manifest").entity_type, "counter");
    for bad in ["Acme", "a:b", "a/b"] {
        let text = format!("namespace = \"{bad}\"\n{SMALL}");
        let error = Manifest::parse(&text, "entity.toml").expect_err(bad);
        assert_eq!((error.code(), error.line()), (codes::INVALID_MANIFEST, Some(1)), "{bad}");
    }
    let text = "type = \"acme:counter\"\ncomponent = \"c.wasm\"\n";
    assert!(Manifest::parse(text, "entity.toml").is_err(), "a type contains no namespace");
}

/// A value of each key that is not its default, so that the text of the manifest has every key.
const EVERY_KEY: &str = "\
namespace = \"acme\"
reentrant = \"queries\"
[limits]
subscriptions = 1
[lifecycle]
time-to-live = \"1 s\"
on-failure = \"stop\"
[grants]
tell = [\"counter\"]
http = [\"example.com\"]
secrets = [\"key\"]
settings = [\"key\"]
";

#[test]
fn the_documentation_has_every_key_with_its_default() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/manifest.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let table = |text: &str| {
        let manifest = Manifest::parse(text, "entity.toml").expect("a manifest");
        manifest.effective_toml().parse::<toml::Table>().expect("TOML")
    };
    let defaults = table(SMALL);
    let check = |section: Option<&str>, table: &toml::Table, defaults: Option<&toml::Table>| {
        let title = section.map_or("## The type".into(), |name| format!("## `[{name}]`"));
        let (_, rest) = page.split_once(&format!("{title}\n")).expect(&title);
        let (rows, _) = rest.split_once("\n## ").unwrap_or((rest, ""));
        for key in table.iter().filter(|(_, value)| !value.is_table()).map(|(key, _)| key) {
            let row = rows.lines().find_map(|line| line.strip_prefix(&format!("| `{key}` | ")));
            let row = row.unwrap_or_else(|| panic!("{title} has no row for `{key}`"));
            let is_required = ["type", "component"].contains(&key.as_str());
            match defaults.and_then(|table| table.get(key)) {
                Some(default) if !is_required => {
                    assert!(row.starts_with(&format!("`{default}` | ")), "{key}: {default}: {row}");
                }
                _ => {}
            }
        }
        let count = rows.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(count, table.values().filter(|value| !value.is_table()).count(), "{title}");
    };
    let all = table(&format!("{SMALL}{EVERY_KEY}"));
    check(None, &all, Some(&defaults));
    for (name, section) in all.iter().filter_map(|(name, it)| Some((name, it.as_table()?))) {
        check(Some(name), section, defaults.get(name).and_then(toml::Value::as_table));
    }
}
