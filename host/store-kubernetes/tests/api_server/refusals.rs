//! What a wrong address, token, certificate, permission or store gets.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ostraca_core::ids::ClusterId;
use ostraca_store::{ClusterStore, CompareAndSetError, StoreError};
use ostraca_store_kubernetes::{KubernetesStore, OpenError, Options};
use ostraca_test_servers::certificates::certificates;
use ostraca_test_servers::kubernetes::ApiServer;
use tempfile::TempDir;

use super::{CLUSTER, cas, create, delete, options};

const ALL: &[&str] =
    &["list leases", "watch leases", "create leases", "update leases", "delete leases"];

async fn refused(options: Options) -> OpenError {
    KubernetesStore::open(options).await.expect_err("refused")
}

fn file(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("written");
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_address_or_store_is_refused_with_the_reason() {
    let server = ApiServer::start();
    let missing = refused(options(&server)).await;
    assert!(matches!(&missing, OpenError::Missing { .. }), "{missing}");
    create(&server).await;
    let again = KubernetesStore::create(options(&server), ClusterId(9), "other").await;
    let again = again.expect_err("refused");
    assert!(matches!(&again, OpenError::Exists { cluster: CLUSTER, .. }), "{again}");
    let other = refused(Options { cluster: Some(ClusterId(9)), ..options(&server) }).await;
    assert!(matches!(&other, OpenError::OtherCluster { cluster: CLUSTER, .. }), "{other}");
    let named = Options { name: "else".into(), ..options(&server) };
    let named = KubernetesStore::create(named, ClusterId(9), "other").await.expect("another store");
    named.compare_and_set(cas("a", None, "else")).await.expect("written");
    let store = KubernetesStore::open(options(&server)).await.expect("opened");
    assert_eq!(store.list("").await.expect("rows").0, [], "each store has rows of its own");
    assert_eq!(store.get("a").await, Ok(None));

    for (url, expected) in
        [("http://10.0.0.1:1", "https"), ("ftp://a", "https"), ("http://127.0.0.1:1", "refused")]
    {
        let error = refused(Options::new(url, "default")).await;
        assert!(error.to_string().contains(expected), "{url}: {error}");
        assert_eq!(error.is_retryable(), url == "http://127.0.0.1:1");
    }
    for name in ["", "A", "a/../b"] {
        for options in [
            Options { name: name.into(), ..options(&server) },
            Options { namespace: name.into(), ..options(&server) },
        ] {
            let error = refused(options).await;
            assert!(matches!(error, OpenError::Name { .. }), "{error}");
        }
    }
    let nowhere = Options { namespace: "nowhere".into(), ..options(&server) };
    assert!(matches!(refused(nowhere.clone()).await, OpenError::Missing { .. }));
    let nowhere = KubernetesStore::create(nowhere, CLUSTER, "test").await.expect_err("refused");
    assert!(
        matches!(&nowhere, OpenError::Namespace { namespace } if namespace == "nowhere"),
        "{nowhere}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_are_not_readable_are_named() {
    let server = ApiServer::start();
    let store = create(&server).await;
    store.compare_and_set(cas("a", None, "1")).await.expect("written");
    let change = |name: &str, annotation: &str, value: &str| {
        server.objects(|it| {
            let leases = it.leases("default");
            let name = leases.iter().find(|it| it.starts_with(name)).expect("a lease");
            let mut object = it.object("leases", "default", name).expect("a lease");
            object["metadata"]["annotations"][annotation] = value.into();
            it.put("leases", "default", object);
        });
    };
    change("ostraca.a.", "ostraca.dev/row", &STANDARD.encode([9; 30]));
    for error in
        [store.get("a").await.expect_err("refused"), store.list("").await.expect_err("refused")]
    {
        let text = error.to_string();
        assert!(matches!(error, StoreError::Corrupt(_)), "{text}");
        assert!(text.contains("lease ostraca.a.") && text.contains("format 9"), "{text}");
    }
    change("ostraca.store", "ostraca.dev/store", r#"{"format":9}"#);
    let newer = refused(options(&server)).await;
    assert!(matches!(newer, OpenError::NewerFormat { found: 9, known: 1 }), "{newer}");
    change("ostraca.store", "ostraca.dev/store", "what?");
    let corrupt = refused(options(&server)).await;
    assert!(
        matches!(&corrupt, OpenError::Corrupt { name, .. } if name == "ostraca.store"),
        "{corrupt}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_numbers_as_versions_is_refused() {
    let server = ApiServer::start();
    create(&server).await;
    server.hide_versions();
    let error = refused(options(&server)).await;
    assert!(matches!(&error, OpenError::Version { found } if found.starts_with('v')), "{error}");
}

/// The settings with a token.
fn with_token(server: &ApiServer, path: &Path) -> Options {
    Options { token_file: Some(path.into()), ..options(server) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_permission_is_named() {
    let server = ApiServer::start();
    let dir = tempfile::tempdir().expect("a directory");
    let with = |token| with_token(&server, &file(&dir, token, token));
    for verb in ["list", "create", "update"] {
        let allowed: Vec<_> = ALL.iter().copied().filter(|it| !it.starts_with(verb)).collect();
        server.restrict(&[("full", ALL), ("poor", &allowed)]);
        if verb != "create" {
            drop(KubernetesStore::create(with("full"), CLUSTER, "test").await);
        }
        let error = match verb {
            "create" => KubernetesStore::create(with("poor"), CLUSTER, "test").await,
            _ => KubernetesStore::open(with("poor")).await,
        };
        let error = error.expect_err("refused");
        let text = error.to_string();
        let expected = format!("refuses to {verb} leases in the namespace default");
        assert!(matches!(error, OpenError::Permission { .. }), "{text}");
        assert!(text.contains(&expected) && text.contains("Role"), "{text}");
    }
    // A running store goes on when the right is there again.
    server.restrict(&[("full", ALL)]);
    let store = KubernetesStore::open(with("full")).await.expect("opened");
    let made = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    server.restrict(&[("full", &[])]);
    let error = store.compare_and_set(cas("a", Some(made), "2")).await.expect_err("refused");
    assert!(
        matches!(&error, CompareAndSetError::Store(error) if error.is_retryable() && error.to_string().contains("update leases")),
        "{error}"
    );
    server.restrict(&[("full", ALL)]);
    store.compare_and_set(delete("a", made)).await.expect("deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_checked_and_read_again() {
    let server = ApiServer::start();
    let dir = tempfile::tempdir().expect("a directory");
    server.restrict(&[("first", ALL)]);
    let path = file(&dir, "token", "first\n");
    let store = KubernetesStore::create(with_token(&server, &path), CLUSTER, "test").await;
    let store = store.expect("a store");
    let made = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    for (options, expected) in [
        (with_token(&server, &file(&dir, "wrong", "wrong")), "does not accept the token"),
        (with_token(&server, &file(&dir, "lines", "a\nb")), "has no token"),
        (with_token(&server, Path::new("/nowhere")), "cannot read /nowhere"),
        (options(&server), "system:anonymous"),
    ] {
        let error = refused(options).await;
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
    // Kubernetes replaces tokens: the store uses the new one as soon as the former one is refused.
    file(&dir, "token", "second");
    server.restrict(&[("second", ALL)]);
    store.compare_and_set(cas("a", Some(made), "2")).await.expect("written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_checks_the_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let (ca, certificate, key) = certificates("localhost");
    let (other_ca, other_certificate, _) = certificates("localhost");
    let server = ApiServer::start_tls(&certificate, &key);
    let options = |url: String, ca: &str| Options {
        ca_file: Some(file(&dir, &format!("{}.pem", ca.len()), ca)),
        ..Options::new(url, "default")
    };
    let creating = KubernetesStore::create(options(server.url(), &ca), CLUSTER, "test");
    creating.await.expect("a store").list("").await.expect("rows");
    let by_address = format!("https://127.0.0.1:{}", server.port());
    let public = Options::new(server.url(), "default");
    for (options, expected) in [
        (options(by_address, &ca), "certificate"),
        (options(server.url(), &format!("{other_ca}\n")), "certificate"),
        (public, "certificate"),
        (options(format!("http://127.0.0.1:{}", server.port()), &ca), "cannot reach"),
    ] {
        let error = refused(options).await;
        assert!(error.to_string().to_lowercase().contains(expected), "{expected}: {error}");
    }
    let nothing = refused(options(server.url(), "nothing")).await;
    assert!(nothing.to_string().contains("no certificate"), "{nothing}");
    let own = (file(&dir, "own", &other_certificate), file(&dir, "none", "no key"));
    let no_key = Options { identity: Some(own), ..options(server.url(), &ca) };
    let no_key = refused(no_key).await;
    assert!(
        matches!(&no_key, OpenError::Certificate { path, .. } if path.ends_with("none")),
        "{no_key}"
    );
}
