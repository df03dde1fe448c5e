//! What a wrong address, login, certificate or store gets.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use ostraca_core::ids::ClusterId;
use ostraca_store::ClusterStore;
use ostraca_store_etcd::{EtcdStore, OpenError, Options, Tls};
use ostraca_test_servers::certificates::certificates;
use ostraca_test_servers::etcd::Cluster;
use tempfile::TempDir;

use super::{CLUSTER, cas, create};

async fn refused(options: Options) -> OpenError {
    EtcdStore::open(options).await.expect_err("refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_address_or_store_is_refused_with_the_reason() {
    let etcd = Cluster::start(1);
    let options = || Options::new(etcd.endpoints());
    let missing = refused(options()).await;
    assert!(matches!(&missing, OpenError::Missing { prefix } if prefix == "ostraca/"), "{missing}");
    create(&etcd).await;
    let again = EtcdStore::create(options(), ClusterId(9), "other").await.expect_err("refused");
    assert!(matches!(&again, OpenError::Exists { cluster: CLUSTER, .. }), "{again}");
    let other = refused(Options { cluster: Some(ClusterId(9)), ..options() }).await;
    assert!(matches!(&other, OpenError::OtherCluster { cluster: CLUSTER, .. }), "{other}");
    EtcdStore::create(Options { prefix: "else/".into(), ..options() }, ClusterId(9), "other")
        .await
        .expect("another prefix is another store");

    for (endpoint, expected) in
        [("http://a:1", "tls"), ("a", "no port"), ("127.0.0.1:1", "refused")]
    {
        let error = refused(Options::new([endpoint])).await;
        assert!(error.to_string().contains(expected), "{endpoint}: {error}");
        assert_eq!(error.is_retryable(), endpoint == "127.0.0.1:1");
    }
    // A member that is down does not matter.
    let mut members = vec!["127.0.0.1:1".to_owned()];
    members.extend(etcd.endpoints());
    EtcdStore::open(Options::new(members)).await.expect("the second member serves");

    etcd.ctl(&["put", "ostraca/store", r#"{"format":9}"#]).expect("written");
    let newer = refused(options()).await;
    assert!(matches!(newer, OpenError::NewerFormat { found: 9, known: 1 }), "{newer}");
    etcd.ctl(&["put", "ostraca/store", "what?"]).expect("written");
    let corrupt = refused(options()).await;
    assert!(
        matches!(&corrupt, OpenError::Corrupt { key, .. } if key == "ostraca/store"),
        "{corrupt}"
    );
}

/// Files with names of their own.
pub(crate) struct Files(TempDir, AtomicU32);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"), AtomicU32::new(0))
    }

    pub(crate) fn file(&self, text: &str) -> Option<PathBuf> {
        let path = self.0.path().join(self.1.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::write(&path, text).expect("written");
        Some(path)
    }
}

/// Lets etcd ask for logins: the user `o` may use the store, `reader` may read it, and `nobody` may not. Each has the
/// password `secret`.
pub(crate) fn add_users(etcd: &Cluster) {
    for command in [
        &["user", "add", "root", "--new-user-password", "rootpass"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "o", "--new-user-password", "secret"],
        &["role", "add", "o"],
        &["role", "grant-permission", "o", "--prefix=true", "readwrite", "ostraca/"],
        &["user", "grant-role", "o", "o"],
        &["user", "add", "reader", "--new-user-password", "secret"],
        &["role", "add", "reader"],
        &["role", "grant-permission", "reader", "--prefix=true", "read", "ostraca/"],
        &["user", "grant-role", "reader", "reader"],
        &["user", "add", "nobody", "--new-user-password", "secret"],
        &["auth", "enable"],
    ] {
        if let Err(why) = etcd.ctl(command) {
            // The role of root may have to be made first.
            etcd.ctl(&["role", "add", "root"]).expect("a role");
            etcd.ctl(command).unwrap_or_else(|_| panic!("{command:?}: {why}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_is_checked_and_its_rights_too() {
    let etcd = Cluster::start(1);
    create(&etcd).await;
    add_users(&etcd);
    let files = Files::new();
    let login = |user: &str, password: &str| Options {
        user: Some(user.into()),
        password_file: files.file(password),
        ..Options::new(etcd.endpoints())
    };
    let store = EtcdStore::open(login("o", "secret\n")).await.expect("opened");
    store.compare_and_set(cas("a", None, "1")).await.expect("written");
    for (options, expected) in [
        (login("o", "wrong"), "login as o"),
        (login("x", "secret"), "login as x"),
        (login("nobody", "secret"), "access to the keys ostraca/"),
        (Options { prefix: "else/".into(), ..login("o", "secret") }, "access to the keys else/"),
        (Options { user: None, ..login("o", "secret") }, "user name is empty"),
    ] {
        let error = refused(options).await;
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
    // Whether a store can be created is known before it is.
    let checked = async |prefix: &str, user: &str| {
        EtcdStore::check_missing(Options { prefix: prefix.into(), ..login(user, "secret") }).await
    };
    let found = checked("ostraca/", "o").await.expect_err("it exists");
    assert!(matches!(found, OpenError::Exists { .. }), "{found}");
    checked("ostraca/2/", "o").await.expect("a free prefix");
    for _ in 0..2 {
        let refused = checked("ostraca/2/", "reader").await.expect_err("it may only read");
        assert!(matches!(refused, OpenError::Permission { .. }), "{refused}");
        checked("ostraca/2/", "o").await.expect("nothing was created");
    }
    let nowhere = Options { password_file: Some("/nowhere".into()), ..login("o", "") };
    let error = refused(nowhere).await;
    assert!(matches!(error, OpenError::File { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_checks_both_sides() {
    let (ca, certificate, key) = certificates("localhost");
    let (other_ca, other_certificate, other_key) = certificates("localhost");
    let arguments = [
        "--cert-file={dir}/crt",
        "--key-file={dir}/key",
        "--client-cert-auth",
        "--trusted-ca-file={dir}/ca",
    ];
    let etcd =
        Cluster::start_with(1, &arguments, &[("crt", &certificate), ("key", &key), ("ca", &ca)]);
    let files = Files::new();
    let options = |host: &str, ca: &str, own: Option<(&str, &str)>| Options {
        tls: Tls::Verify {
            ca: files.file(ca),
            identity: own
                .and_then(|(certificate, key)| files.file(certificate).zip(files.file(key))),
        },
        ..Options::new([format!("{host}:{}", etcd.port(0))])
    };
    let own = Some((certificate.as_str(), key.as_str()));
    let creating = EtcdStore::create(options("localhost", &ca, own), CLUSTER, "test");
    creating.await.expect("a store").list("").await.expect("rows");
    let others = Some((other_certificate.as_str(), other_key.as_str()));
    for (options, expected) in [
        (options("127.0.0.1", &ca, own), "certificate"),
        (options("localhost", &other_ca, own), "certificate"),
        // The server may close the connection before its reason arrives.
        (options("localhost", &ca, others), "cannot reach etcd"),
        (options("localhost", &ca, None), "cannot reach etcd"),
        (Options::new([format!("localhost:{}", etcd.port(0))]), "cannot reach etcd"),
    ] {
        let error = refused(options).await;
        assert!(error.to_string().to_lowercase().contains(expected), "{expected}: {error}");
    }
    let nothing = refused(options("localhost", "nothing", own)).await;
    assert!(nothing.to_string().contains("no certificate"), "{nothing}");
}
