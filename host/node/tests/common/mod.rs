//! Helpers for tests of whole nodes: a node's directory, a client, and a guest that each test process builds once.

#![allow(dead_code, reason = "no test program uses all of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use bytes::Bytes;
use ostraca_client::{Client, Profile};
use ostraca_node::config::{ClusterSettings, Role};
use ostraca_node::{Config, InitOptions, InitializedCluster, JoinOptions, Node, init, join};

/// The manifest of the counter.
pub(crate) const COUNTER: &str = "type = \"counter\"\ncomponent = \"counter.wasm\"\n";

/// The counter of this workspace as a component.
pub(crate) fn counter() -> Bytes {
    static BUILT: OnceLock<Bytes> = OnceLock::new();
    BUILT.get_or_init(|| guest("counter")).clone()
}

/// A guest of this workspace as a component.
pub(crate) fn guest(name: &str) -> Bytes {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--target", "wasm32-unknown-unknown", "-p", name])
        .arg("--target-dir")
        .arg(&target)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .status()
        .expect("cargo runs");
    assert!(built.success(), "the guest builds");
    let module = std::fs::read(target.join(format!("wasm32-unknown-unknown/release/{name}.wasm")));
    ostraca_wasm::encode(&module.expect("a built guest")).expect("a component").into()
}

/// Creates the directory of a cluster's first node, n1.
pub(crate) fn make(home: &Path) -> InitializedCluster {
    make_with(home, ClusterSettings::default())
}

/// Creates the directory of a cluster's first node, n1, with these cluster settings.
pub(crate) fn make_with(home: &Path, settings: ClusterSettings) -> InitializedCluster {
    let options = InitOptions {
        cluster_name: "test".into(),
        node: "n1".into(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        shards: 64,
        settings,
        postgres: None,
        rows: None,
    };
    init(home, &options).expect("a new node")
}

/// Starts the node in the directory `home`.
pub(crate) async fn start(home: &Path) -> Node {
    Node::start(config(home)).await.expect("a node that serves")
}

/// The configuration of the node in the directory `home`, with a compiler for tests.
pub(crate) fn config(home: &Path) -> Config {
    let file = home.join("ostraca.toml");
    let text = std::fs::read_to_string(&file).expect("the configuration that was written");
    if !text.contains("\n[compiler]\nprogram") {
        // A test program has its own main, which cannot act as the compiler.
        let program = env!("CARGO_BIN_EXE_ostraca-node-compiler");
        let compiler = format!("\n[compiler]\nprogram = {program:?}\n");
        std::fs::write(&file, text + &compiler).expect("written");
    }
    Config::load(&file).expect("a configuration")
}

/// An operator's connection to a node of this cluster.
pub(crate) async fn client(node: &Node, cluster: &InitializedCluster) -> Client {
    let profile = Profile::new(vec![node.address().to_string()], &cluster.ca_pem, &cluster.admin);
    Client::connect(profile).await.expect("a connection")
}

/// Creates the directory of a second node, which joins.
pub(crate) fn joined(dir: &Path, first: &Node, cluster: &InitializedCluster) -> PathBuf {
    let home = dir.join("n2");
    let options = JoinOptions {
        node: "n2".into(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        roles: vec![Role::Manager, Role::Host, Role::Gateway],
        join: vec![first.address().to_string()],
        ca: cluster.ca.clone(),
        postgres: None,
        rows: None,
    };
    join(&home, &options).expect("a node that joins");
    home
}

/// Copies a node's directory, which must not be in use.
pub(crate) fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("the directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("its type").is_dir() {
            true => copy_directory(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("copied")),
        }
    }
}
