use ostraca_core::shard::SlotLimits;

use super::*;

mod reach;
mod texts;

fn keys(table: &toml::Table, above: &str, into: &mut Vec<String>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(inner) => keys(inner, &format!("{above}{key}."), into),
            value => into.push(format!("{above}{key} = {value}")),
        }
    }
}

fn lines(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    keys(&text.parse().expect("TOML"), "", &mut all);
    all.sort();
    all
}

#[test]
fn the_default_text_has_every_setting_with_its_default() {
    let code = toml::to_string(&ConfigFile { node: "node-1".into(), ..ConfigFile::default() })
        .expect("TOML");
    assert_eq!(lines(Config::default_toml()), lines(&code));
}

#[test]
fn the_default_text_has_optional_settings_as_comments() {
    // A database would replace the role `store`.
    let lines = Config::default_toml().lines().filter(|line| !line.starts_with("# url = \"host"));
    let uncommented = lines.map(|line| {
        line.strip_prefix("# ")
            .filter(|it| it.contains(" = ") && !it.contains(". "))
            .unwrap_or(line)
    });
    // Some settings are used only with others.
    let text = uncommented.collect::<Vec<_>>().join("\n");
    let text = text.replace("kind = \"none\"", "kind = \"http\"");
    let text = text.replace("url = \"\"", "url = \"https://a/{node}\"");
    let config = Config::parse(&text, "dir/ostraca.toml").expect("a configuration");
    assert_eq!(config.wasm_settings().max_live_instances, Some(8000));
    assert_eq!(config.expected_shards, Some(DEFAULT_SHARDS));
    assert_eq!(config.expected_hash.as_deref(), Some("murmur3_x86_32"));
    assert_eq!(config.recording_dir, Some("dir/record".into()));
    assert_eq!(config.wasm_settings().outgoing_http.ca_file, Some("dir/outgoing-ca.pem".into()));
}

#[test]
fn defaults_equal_those_of_the_libraries() {
    let config = Config::parse("node = \"n\"", "dir/ostraca.toml").expect("a configuration");
    assert_eq!(config.wire_limits(), ostraca_wire::Limits::default());
    assert_eq!(config.shard_settings(), ostraca_core::shard::Settings::default());
    let wasm = ostraca_wasm::RuntimeSettings {
        cache_dir: Some("dir/cache".into()),
        ..ostraca_wasm::RuntimeSettings::default()
    };
    assert_eq!(format!("{:?}", config.wasm_settings()), format!("{wasm:?}"));
    let store = ostraca_store_sled::Options {
        witness: Some("dir/witness".into()),
        ..ostraca_store_sled::Options::default()
    };
    assert_eq!(format!("{:?}", config.store_options()), format!("{store:?}"));
    assert_eq!(config.store_dir(), Path::new("dir/store"));
    assert_eq!(config.roles(), Roles::ALL);
    // The library sends no keep-alives on its own.
    let keep_alive_interval = Some(1_000);
    let node = ostraca_core::node::Settings {
        embedded_store: true,
        keep_alive_interval,
        ..Default::default()
    };
    assert_eq!(config.node_settings(), node);
    assert_eq!(config.route_settings(), ostraca_core::route::Settings::default());
}

#[test]
fn only_a_node_without_the_store_joins_others() {
    let text = "node = \"n\"\nroles = [\"host\"]\njoin = [\"a:1\", \"[::1]:2\"]";
    let config = Config::parse(text, "ostraca.toml").expect("a configuration");
    assert_eq!(config.join, ["a:1", "[::1]:2"]);
    assert_eq!(config.roles(), Roles { host: true, ..Roles::default() });
    assert!(!config.node_settings().embedded_store);
}

#[test]
fn with_a_database_no_node_has_the_store() {
    let text = "node = \"n\"\nlease = \"2 s\"\n[postgres]\nurl = \"host=localhost dbname=o\"\npassword-file = \"pw\"\nwriters = 2\n[store]\nqueue-commits = 7\n";
    let config = Config::parse(text, "dir/ostraca.toml").expect("a configuration");
    assert_eq!(config.roles(), Roles { store: false, ..Roles::ALL });
    assert!(!config.node_settings().embedded_store);
    let options = config.postgres_options().expect("a database");
    assert_eq!((options.writers, options.queue_commits), (2, 7));
    assert_eq!(options.password_file, Some("dir/pw".into()));
    assert_eq!(options.tls, ostraca_store_postgres::Tls::Off, "it is on this machine");
    // R4 and R8: nothing may wait longer than the lease.
    assert_eq!(options.statement_timeout, Duration::from_millis(1_200));
    assert_eq!(options.call_timeout, Duration::from_secs(2));

    let far = "node = \"n\"\n[postgres]\nurl = \"postgres://db.example.org/o\"\ntls = \"verify\"\nca-file = \"ca.pem\"\n";
    let config = Config::parse(far, "dir/ostraca.toml").expect("a configuration");
    let options = config.postgres_options().expect("a database");
    assert_eq!(options.tls, ostraca_store_postgres::Tls::Verify { ca: Some("dir/ca.pem".into()) });
    let embedded = Config::parse("node = \"n\"", "ostraca.toml").expect("a configuration");
    assert!(embedded.postgres_options().is_none());
}

#[test]
fn further_databases_have_the_settings_of_the_first() {
    let text = "node = \"n\"\n[postgres]\nurl = \"host=db1\"\ndatabases = [\"host=db2\", \"host=db3\"]\ntls = \"verify\"\nwriters = 2\n[store]\nqueue-reads = 7\n";
    let config = Config::parse(text, "dir/ostraca.toml").expect("a configuration");
    let further = config.further_databases();
    let urls: Vec<_> = further.iter().map(|options| options.url.as_str()).collect();
    assert_eq!(urls, ["host=db2", "host=db3"]);
    for options in further {
        assert_eq!((options.writers, options.queue_reads), (2, 7));
        assert_eq!(options.tls, ostraca_store_postgres::Tls::Verify { ca: None });
    }
}

#[test]
fn with_etcd_the_state_stays_where_it_is() {
    let text = "node = \"n\"\nlease = \"2 s\"\n[etcd]\nendpoints = [\"localhost:2379\"]\nuser = \"o\"\npassword-file = \"pw\"\n[store]\nqueue-metadata-ops = 7\n";
    let config = Config::parse(text, "dir/ostraca.toml").expect("a configuration");
    assert_eq!(config.roles(), Roles::ALL);
    assert!(config.has_rows_outside() && config.postgres_options().is_none());
    assert!(!config.node_settings().embedded_store, "another process could have its name");
    let Some(RowsStore::Etcd(options)) = config.rows_store() else { panic!("rows in etcd") };
    assert_eq!(options.endpoints, ["localhost:2379"]);
    assert_eq!((options.user.as_deref(), options.queue_rows), (Some("o"), 7));
    assert_eq!(options.password_file, Some("dir/pw".into()));
    // R8: a renewal must be able to reach another member in time.
    assert_eq!(options.call_timeout, Duration::from_secs(2));
    for time in [options.attempt_timeout, options.connect_timeout, options.watch_timeout] {
        assert_eq!(time, Duration::from_millis(500));
    }

    let both = "node = \"n\"\n[postgres]\nurl = \"host=localhost\"\n[etcd]\nendpoints = [\"e1:1\", \"e2:1\"]\ntls = \"verify\"\nca-file = \"ca.pem\"\ncertificate-file = \"c.pem\"\nkey-file = \"c.key\"";
    let config = Config::parse(both, "dir/ostraca.toml").expect("a configuration");
    assert_eq!(config.roles(), Roles { store: false, ..Roles::ALL });
    let expected = ostraca_store_etcd::Tls::Verify {
        ca: Some("dir/ca.pem".into()),
        identity: Some(("dir/c.pem".into(), "dir/c.key".into())),
    };
    let Some(RowsStore::Etcd(options)) = config.rows_store() else { panic!("rows in etcd") };
    assert_eq!(options.tls, expected);
    // A node without the role `store` finds the state's node through the rows.
    let host = "node = \"n\"\nroles = [\"host\"]\n[etcd]\nendpoints = [\"[::1]:1\"]";
    assert!(Config::parse(host, "ostraca.toml").expect("a configuration").join.is_empty());
}

#[test]
fn with_kubernetes_the_state_stays_where_it_is() {
    let text = "node = \"n\"\nlease = \"2 s\"\n[kubernetes]\nurl = \"in-cluster\"\ntoken-file = \"token\"\ncertificate-file = \"c.pem\"\nkey-file = \"c.key\"\n[store]\nqueue-metadata-ops = 7\n";
    let config = Config::parse(text, "dir/ostraca.toml").expect("a configuration");
    assert_eq!(config.roles(), Roles::ALL);
    assert!(config.has_rows_outside() && config.postgres_options().is_none());
    assert!(!config.node_settings().embedded_store, "another process could have its name");
    let Some(RowsStore::Kubernetes(options)) = config.rows_store() else { panic!("rows there") };
    assert_eq!((options.url.as_str(), options.namespace.as_str()), ("in-cluster", ""));
    assert_eq!((options.name.as_str(), options.queue_rows), ("ostraca", 7));
    assert_eq!(options.token_file, Some("dir/token".into()));
    assert_eq!(options.identity, Some(("dir/c.pem".into(), "dir/c.key".into())));
    // R8: a renewal must be sent again in time.
    assert_eq!(options.call_timeout, Duration::from_secs(2));
    for time in [options.attempt_timeout, options.connect_timeout, options.watch_timeout] {
        assert_eq!(time, Duration::from_millis(500));
    }
    let host =
        "node = \"n\"\nroles = [\"host\"]\n[kubernetes]\nurl = \"https://a\"\nnamespace = \"shop\"";
    assert!(Config::parse(host, "ostraca.toml").expect("a configuration").join.is_empty());
}

#[test]
fn s7_each_kind_of_health_check_gets_its_settings() {
    let parse = |more: &str| {
        let text = format!("node = \"n\"\n{more}");
        Config::parse(&text, "dir/ostraca.toml").expect("a configuration")
    };
    let interval = |config: &Config| config.node_settings().health_check_interval;
    let mut config = parse("");
    assert!(config.health_check().is_none() && interval(&config).is_none(), "by default");
    config.set_supplied_health_check();
    assert!(config.health_check().is_none());
    assert_eq!(interval(&config), Some(500), "the program's own is asked at the same interval");

    let text = "[kubernetes]\nurl = \"in-cluster\"\npod = \"p\"\n[health-check]\nkind = \"kubernetes\"\ninterval = \"70 ms\"";
    let config = parse(text);
    let Some(HealthCheckSettings::Kubernetes(pods)) = config.health_check() else { panic!() };
    assert_eq!((pods.pod.as_str(), interval(&config)), ("p", Some(70)));

    let text =
        "[health-check]\nkind = \"command\"\ncommand = [\"/x\", \"-v\"]\ntimeout = \"70 ms\"";
    let Some(HealthCheckSettings::Command(command)) = parse(text).health_check() else { panic!() };
    assert_eq!((command.program, command.arguments), ("/x".into(), vec!["-v".to_owned()]));
    assert_eq!(command.timeout, Duration::from_millis(70));

    let text = "[health-check]\nkind = \"http\"\nurl = \"https://a/{node}\"\nca-file = \"ca.pem\"\ntoken-file = \"/t\"";
    let Some(HealthCheckSettings::Http(http)) = parse(text).health_check() else { panic!() };
    assert_eq!(http.url, "https://a/{node}");
    assert_eq!((http.ca_file, http.token_file), (Some("dir/ca.pem".into()), Some("/t".into())));
    assert_eq!(http.timeout, Duration::from_secs(2));
}

#[test]
fn join_addresses_may_come_from_the_command_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ostraca.toml");
    std::fs::write(&path, "node = \"n\"\nroles = [\"host\"]").expect("written");
    assert!(Config::load(&path).is_err());
    let config = Config::load_with_join(&path, &["a:1".into()]).expect("a configuration");
    assert_eq!(config.join, ["a:1"]);
    std::fs::write(&path, "node = \"n\"").expect("written");
    let error = Config::load_with_join(&path, &["a:1".into()]).expect_err("it has the store");
    assert!(error.to_string().contains("cannot join others"), "{error}");
}

#[test]
fn the_effective_text_parses_to_the_same_configuration() {
    let text = "node = \"n\"\nrecording-dir = \"r\"\n[guests]\nmax-live-instances = 7\nallocator = \"on-demand\"\n";
    let config = Config::parse(text, "ostraca.toml").expect("a configuration");
    let again = Config::parse(&config.effective_toml(), "ostraca.toml").expect("a configuration");
    assert_eq!(format!("{config:?}"), format!("{again:?}"));
}

#[test]
fn settings_reach_the_node_machine_and_its_strategy() {
    let text = "node = \"n\"\nmanager-silence-leases = 3\nreport-delay = \"7 ms\"\ncampaign-stagger = \"9 ms\"\n[rebalance]\nstrategy = \"least-shard\"\nmin-hosts = 3\nleast-shard-threshold = 4\nleast-shard-max-moving = 5";
    let config = Config::parse(text, "ostraca.toml").expect("a configuration");
    let node = config.node_settings();
    assert_eq!(
        (node.manager_silence_timeout, node.report_delay, node.campaign_stagger, node.min_hosts),
        (9_000, 7, 9, 3)
    );
    let strategy = format!("{:?}", config.strategy());
    assert_eq!(strategy, "LeastShard { threshold: 4, limit: 5 }");
}

#[test]
fn each_error_names_its_line() {
    let cases = [
        (
            "node = \"n\"\nroles = [\"store\"]\n[postgres]\nurl = \"host=localhost\"",
            Some(2),
            "no node has the role `store`",
        ),
        (
            "node = \"n\"\njoin = [\"a:1\"]\n[postgres]\nurl = \"host=localhost\"",
            Some(2),
            "a node joins no others",
        ),
        ("node = \"n\"\n[postgres]\nurl = \"there\"", Some(3), "not the address of a database"),
        ("node = \"n\"\n[postgres]\nurl = \"dbname=o\"", Some(3), "names no host"),
        ("node = \"n\"\n[postgres]\nurl = \"host=db\"", Some(3), "`tls` must be set"),
        (
            "node = \"n\"\n[postgres]\nurl = \"host=localhost\"\ndatabases = [\"host=db\"]",
            Some(4),
            "`tls` must be set",
        ),
        (
            "node = \"n\"\n[postgres]\nurl = \"host=localhost\"\ndatabases = [\"dbname=o\"]",
            Some(4),
            "an entry of `databases` is not the address of a database",
        ),
        ("node = \"n\"\n[postgres]\ndatabases = [\"host=db\"]", Some(3), "in addition to the one"),
        (
            "node = \"n\"\n[postgres]\nurl = \"host=localhost\"\nca-file = \"x\"",
            Some(4),
            "only with `tls = \"verify\"`",
        ),
        ("node = \"n\"\n[etcd]\nendpoints = [\"there\"]", Some(3), "not the address of a member"),
        ("node = \"n\"\n[etcd]\nendpoints = [\"far:1\"]", Some(3), "`tls` must be set for far:1"),
        (
            "node = \"n\"\njoin = [\"a:1\"]\nroles = [\"host\"]\n[etcd]\nendpoints = [\"localhost:1\"]",
            Some(2),
            "with `etcd.endpoints`, a node joins no others",
        ),
        (
            "node = \"n\"\n[etcd]\nendpoints = [\"localhost:1\"]\nkey-file = \"x\"",
            Some(4),
            "`key-file` is used only with",
        ),
        (
            "node = \"n\"\n[etcd]\nendpoints = [\"localhost:1\"]\ntls = \"verify\"\ncertificate-file = \"x\"",
            Some(5),
            "belong together",
        ),
        ("node = \"n\"\n[etcd]\nuser = \"x\"", Some(3), "`user` and `password-file` belong"),
        ("node = \"n\"\n[etcd]\nprefix = \"\"", Some(3), "`prefix` must not be empty"),
        ("node = \"n\"\n[rebalance]\nmin-hosts = 0", Some(3), "`min-hosts` must be from 1"),
        ("node = \"n\"\n[etcd]\nbatch-rows = 0", Some(3), "`batch-rows` must be from 1"),
        ("node = \"n\"\n[kubernetes]\nurl = \"10.0.0.1:443\"", Some(3), "is not an API server"),
        ("node = \"n\"\n[kubernetes]\nurl = \"https://a\"", Some(3), "`namespace` must be set"),
        (
            "node = \"n\"\n[kubernetes]\nurl = \"in-cluster\"\nname = \"A\"",
            Some(4),
            "`name` cannot be \"A\"",
        ),
        (
            "node = \"n\"\n[kubernetes]\nurl = \"in-cluster\"\nkey-file = \"k\"",
            Some(4),
            "belong together",
        ),
        ("node = \"n\"\n[kubernetes]\nca-file = \"x\"", Some(3), "is used only with `url`"),
        ("node = \"n\"\n[kubernetes]\npage-rows = 0", Some(3), "`page-rows` must be from 1"),
        (
            "node = \"n\"\n[kubernetes]\nurl = \"in-cluster\"\n[etcd]\nendpoints = [\"localhost:1\"]",
            Some(3),
            "exclude each other",
        ),
        (
            "node = \"n\"\njoin = [\"a:1\"]\nroles = [\"host\"]\n[kubernetes]\nurl = \"in-cluster\"",
            Some(2),
            "with `kubernetes.url`, a node joins no others",
        ),
        (
            "node = \"n\"\n[health-check]\nkind = \"kubernetes\"",
            Some(3),
            "asks the API server that has the cluster's rows",
        ),
        ("node = \"n\"\n[health-check]\nkind = \"command\"", Some(3), "needs the program to run"),
        (
            "node = \"n\"\n[health-check]\nkind = \"command\"\ncommand = [\"has-ended\"]",
            Some(4),
            "must name its program by an absolute path",
        ),
        (
            "node = \"n\"\n[health-check]\nkind = \"command\"\ncommand = [\"/x\", \"\\u0000\"]",
            Some(4),
            "contains a NUL",
        ),
        (
            "node = \"n\"\n[health-check]\ncommand = [\"/x\"]",
            Some(3),
            "only with `kind = \"command\"`",
        ),
        ("node = \"n\"\n[health-check]\nkind = \"http\"", Some(3), "needs the URL of a server"),
        (
            "node = \"n\"\n[health-check]\nkind = \"http\"\nurl = \"http://far/\"",
            Some(4),
            "another machine could answer",
        ),
        (
            "node = \"n\"\n[health-check]\nkind = \"http\"\nurl = \"https://a/{name}\"",
            Some(4),
            "{name} is not a field",
        ),
        (
            "node = \"n\"\n[health-check]\nkind = \"command\"\nurl = \"https://a\"",
            Some(4),
            "only with `kind = \"http\"`",
        ),
        ("node = \"n\"\n[health-check]\nca-file = \"x\"", Some(3), "only with `kind = \"http\"`"),
        (
            "node = \"n\"\n[health-check]\nkind = \"shell\"",
            Some(3),
            "\"shell\" is not allowed here",
        ),
        ("node = \"n\"\n[health-check]\nkind = true", Some(3), "a name in quotes"),
        (
            "node = \"n\"\n[health-check]\ntimeout = \"1 ms\"",
            Some(3),
            "`timeout` must be from 10 ms",
        ),
        (
            "node = \"n\"\n[health-check]\ninterval = \"2 h\"",
            Some(3),
            "`interval` must be from 10 ms",
        ),
        ("", None, "`node` is required"),
        ("node = \"n\"\nlitsen = \"x\"", Some(2), "unknown key `litsen`"),
        ("node = \"n\"\n[store]\nreaders = \"two\"", Some(3), "invalid type"),
        ("node = \"n\"\n[store]\nreaders = 0", Some(3), "`readers` must be from 1 to 64"),
        ("node = \"n\"\nlease = 3", Some(2), "a time in quotes"),
        ("node = \"n\"\nlease = \"1 s\"", None, "`renew-interval` must be at most"),
        (
            "node = \"n\"\n\n[guests]\npooled-instance-memory = \"1 KiB\"",
            Some(4),
            "`pooled-instance-memory` must be",
        ),
        (
            "node = \"n\"\n[outgoing-http]\nallow-addresses = [\"10.0.0.1/8\"]",
            Some(3),
            "10.0.0.1 has bits set beyond its prefix of 8",
        ),
        ("node = \"n\"\nnode = \"m\"", Some(2), "duplicate key"),
        ("node = \"n/m\"", Some(1), "`node` must be 1 to 64"),
        ("node = \"n\"\nadvertise = [\"host\"]", Some(2), "not an address"),
        ("node = \"n\"\n\njoin = [\"a:1\"]", Some(3), "cannot join others"),
        ("node = \"n\"\nroles = [\"host\"]", Some(2), "needs a node to join"),
        ("node = \"n\"\nroles = []", Some(2), "needs a role"),
        ("node = \"n\"\nroles = [\"hsot\"]", Some(2), "\"hsot\" is not allowed here"),
        ("node = \"n\"\nroles = [\"host.A\"]", Some(2), "lower-case letters"),
        ("node = \"n\"\nroles = [\"host\"]\njoin = [\"a\"]", Some(3), "address to join"),
        (
            "node = \"n\"\n[rebalance]\nstrategy = \"avarage\"",
            Some(3),
            "not an allocation strategy",
        ),
        (
            "node = \"n\"\n[rebalance]\nleast-shard-threshold = 0",
            Some(3),
            "`least-shard-threshold` must be from 1 to 65536",
        ),
        (
            "node = \"n\"\n[rebalance]\nleast-shard-max-moving = 0",
            Some(3),
            "`least-shard-max-moving` must be from 1 to 65536",
        ),
        (
            "node = \"n\"\nmanager-silence-leases = 0",
            Some(2),
            "`manager-silence-leases` must be from 1 to 1000",
        ),
        ("node = \"n\"\nreport-delay = \"0 ms\"", Some(2), "`report-delay` must be from 1 ms"),
        (
            "node = \"n\"\ncampaign-stagger = \"2 h\"",
            Some(2),
            "`campaign-stagger` must be from 1 ms",
        ),
        ("node = \"n\"\n[hand-off]\nack-timeout = \"5 s\"", None, "before it receives"),
        ("node = \"n\"\n[hand-off]\ntimeout = \"1 s\"", Some(3), "must be longer than"),
        ("node = \"n\"\n[peers]\nkeep-alive-interval = \"2 s\"", Some(3), "at most half"),
        (
            "node = \"n\"\n[partition]\nkeep-alive-failures = 0",
            Some(3),
            "`keep-alive-failures` must be from 1 to 1000",
        ),
        ("node = \"n\"\n[partition]\nkeep-alive-interval = \"2 s\"", None, "at least twice"),
        (
            "node = \"n\"\n[partition]\narbiter-timeout = \"2 s\"",
            Some(3),
            "must not be shorter than `arbiter-flag-timeout`",
        ),
        ("node = \"n\"\n[cluster]\nshards = 0", Some(3), "`shards` must be from 1 to 65536"),
    ];
    for (text, line, expected_text) in cases {
        let error = Config::parse(text, "ostraca.toml").expect_err(text);
        assert!(error.to_string().contains(expected_text), "{error}");
        assert_eq!(error.line(), line, "{error}");
        assert_eq!(error.code(), "invalid-config");
    }
}

#[test]
fn a_former_setting_name_is_refused_with_the_new_one() {
    let default = Config::default_toml();
    let known: Vec<_> = lines(default).into_iter().map(|line| line.replace('"', "")).collect();
    for (old, new) in renamed::RENAMED {
        let text = match old.rsplit_once('.') {
            Some((section, key)) => format!("node = \"n\"\n[{section}]\n{key} = 1\n"),
            None if *old == "handoff" => "node = \"n\"\n[handoff]\n".to_owned(),
            None => format!("node = \"n\"\n{old} = 1\n"),
        };
        let error = Config::parse(&text, "ostraca.toml").expect_err(old);
        assert!(error.to_string().contains(&format!("`{old}` was renamed")), "{error}");
        assert_eq!(error.help_text(), Some(&*format!("write `{new}`")), "{error}");
        let optional = default.contains(&format!("# {} = ", new.rsplit('.').next().unwrap_or(new)));
        let set = known.iter().any(|line| line.starts_with(&format!("{new} = ")));
        let section = known.iter().any(|line| line.starts_with(&format!("{new}.")));
        assert!(optional || set || section, "there is no setting `{new}`");
    }
}

#[test]
fn limits_of_pools_are_checked() {
    let parse = |limits: &str| {
        let text = format!("node = \"n\"\n[guests.pools.{limits}\n");
        Config::parse(&text, "ostraca.toml").map_err(|error| error.to_string())
    };
    for (limits, why) in [
        ("Orders]", "the pool \"Orders\" must be 1 to 32 lower-case letters"),
        ("orders]\nmax-live-instances = 0", "`max-live-instances` must be from 1 to 1000000"),
        (
            "orders]\nmax-live-memory = \"1 KiB\"",
            "`max-live-memory` must be from 1 MiB to 1048576 GiB",
        ),
        ("orders]\nmax-live-memory = 5", "a size in quotes"),
        ("orders]\nmax-instances = 5", "unknown key `max-instances`"),
    ] {
        let error = parse(limits).expect_err(limits);
        assert!(error.contains(why), "{error}");
    }
    let one = parse("orders]\nmax-live-instances = 3").expect("limits");
    let limits = one.worker_settings(2, 10).pool_instance_limits;
    let expected = SlotLimits { instances: 1, memory: 8 << 30 };
    assert_eq!(
        limits,
        [("orders".into(), expected)].into(),
        "at least one, and what is not set as for all"
    );
}
