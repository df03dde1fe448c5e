//! Stores outside the nodes that do not answer, do not let the node in, or belong to something else: each is refused by
//! name, and nothing is created or changed.

use std::time::{Duration, Instant};

use ostraca_process_tests::NodeDir;
use ostraca_process_tests::node::refused_start;
use ostraca_test_servers::{etcd, free_port, postgres};

/// `ostraca init` with these stores.
fn init(name: &str, database: &str, etcd: &str, prefix: &str) -> anyhow::Result<NodeDir> {
    let stores = ["--postgres", database, "--etcd", etcd, "--etcd-prefix", prefix];
    NodeDir::init_as(name, &[&["--cluster", name][..], &stores].concat(), |_| {})
}

/// Whether a node and `ostraca config check` refuse the configuration at once, with this code and text.
pub(super) fn refused(home: &NodeDir, code: &str, expected: &str) {
    let began = Instant::now();
    let (exit, stderr) = refused_start(&home.config()).expect("it ends");
    assert!(began.elapsed() < Duration::from_secs(30), "it retried: {stderr}");
    assert!(stderr.contains(code) && stderr.contains(expected), "no {code}, {expected}: {stderr}");
    assert!(exit == 7 && !stderr.contains("panicked"), "{exit}: {stderr}");
}

pub(super) fn check_refuses(home: &NodeDir, code: &str, expected: &str) {
    let config = home.config().display().to_string();
    let checked = home.command(&["config", "check", &config]).expect("it runs");
    let stderr = String::from_utf8_lossy(&checked.stderr);
    assert!(stderr.contains(code) && stderr.contains(expected), "no {code}, {expected}: {stderr}");
    assert!(!checked.status.success(), "{stderr}");
    let offline = home.command(&["config", "check", "--offline", &config]).expect("it runs");
    assert!(offline.status.success(), "the file itself is valid");
}

#[test]
fn stores_that_do_not_fit_are_refused_by_name() {
    let (server, etcd) = (postgres::Server::start(""), etcd::Cluster::start(1));
    let members = etcd.endpoints().join(",");
    let [first, second, third] = std::array::from_fn(|_| server.database());
    let has_tables = |database: &str| {
        let sql = "SELECT to_regclass('ostraca.store') IS NOT NULL";
        server.sql_on(database, sql).expect("asked").trim() == "t"
    };
    let one = init("one", &server.url(&first), &members, "one/").expect("created");

    // Nothing is created in the database if etcd does not answer, or has a store under the prefix.
    let closed = format!("127.0.0.1:{}", free_port());
    for (members, prefix, code) in
        [(&*members, "one/", "store-exists"), (&*closed, "two/", "store-unreachable")]
    {
        let error = init("two", &server.url(&second), members, prefix).expect_err("refused");
        assert!(error.to_string().contains(code), "{error}");
        assert!(!has_tables(&second), "{code}");
    }
    let two = init("two", &server.url(&second), &members, "two/").expect("created");
    let error = init("three", &server.url(&second), &members, "three/").expect_err("refused");
    assert!(error.to_string().contains("store-exists"), "{error}");

    let config = one.config().display().to_string();
    let checked = one.command(&["config", "check", &config]).expect("it runs");
    let stdout = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    for part in ["state", "rows", "of the cluster one", &members, &first] {
        assert!(stdout.contains(part), "no {part} in {stdout}");
    }

    // The other cluster's stores, or none.
    let places = |url: &str, prefix: &str| {
        one.set(&format!("[postgres]\nurl = {url:?}\n[etcd]\nprefix = {prefix:?}")).expect("set");
    };
    for (database, prefix, code, expected) in [
        (&first, "two/", "store-cluster-mismatch", "the cluster two"),
        (&second, "one/", "store-cluster-mismatch", "the cluster two"),
        (&first, "none/", "store-missing", "none/"),
        (&third, "one/", "store-missing", "no tables of Ostraca"),
    ] {
        places(&server.url(database), prefix);
        refused(&one, code, expected);
        check_refuses(&one, code, expected);
    }
    places(&server.url(&first), "one/");

    // A database that was created anew for the same cluster. The node has no witness yet.
    let store = |id: u8| {
        format!("UPDATE ostraca.store SET store_id = '\\x{}'", format!("{id:02x}").repeat(16))
    };
    let [before] = [server.sql_on(&first, "SELECT store_id FROM ostraca.store").expect("read")];
    server.sql_on(&first, &store(7)).expect("changed");
    for witness in ["postgres.witness", "etcd.witness"] {
        // Attempts above have looked at the stores.
        let _ = std::fs::remove_file(one.dir().join(witness));
    }
    refused(&one, "store-mismatch", "according to the cluster's rows");
    let back = format!("UPDATE ostraca.store SET store_id = '{}'", before.trim());
    server.sql_on(&first, &back).expect("changed");

    // etcd with users, and a database that wants a password.
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        etcd.ctl(arguments).expect("done");
    }
    refused(&two, "store-access-denied", "set `user` and `password-file`");
    check_refuses(&two, "store-access-denied", "user name is empty");
    std::fs::write(two.dir().join("etcd.password"), "wrong").expect("written");
    two.set("[etcd]\nuser = \"root\"\npassword-file = \"etcd.password\"").expect("set");
    refused(&two, "store-access-denied", "login as root");
    std::fs::write(two.dir().join("etcd.password"), "secret\n").expect("written");
    server.require_password("postgres");
    refused(&two, "store-access-denied", "check the user, the password file and the database");
}
