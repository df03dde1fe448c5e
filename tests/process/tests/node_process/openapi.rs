//! The description of the deployed types, checked by a public fuzzer of such documents: it makes requests from the
//! document, valid ones and others, and compares the answers with what the document says.

use std::process::Command;

use ostraca_client::Client;
use ostraca_process_tests::http::web_token;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{NodeDir, NodeProcess, artifacts};
use ostraca_test_servers::free_port;
use ostraca_test_servers::python::from_pypi;

/// What the fuzzer is told: headers that the document does not name are permitted, a call may wait for too short a time
/// (504), and an entity may refuse valid arguments (422).
const SETTINGS: &str = r#"
    [generation]
    allow-extra-parameters = false
    [checks.not_a_server_error]
    expected-statuses = ["2xx", "3xx", "4xx", "504"]
    [checks.positive_data_acceptance]
    expected-statuses = ["2xx", "404", "422", "504"]
"#;
/// The fuzzer's release on PyPI.
const FUZZER: &str = "schemathesis==4.32.5";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fuzzer_finds_the_description_of_types_true() {
    let home = NodeDir::init("openapi").expect("init");
    let listen = format!("127.0.0.1:{}", free_port());
    home.set(&format!("[http]\nlisten = {listen:?}\nmax-timeout = \"20 s\"")).expect("set");
    let node = NodeProcess::start(&home).expect("start");
    let admin =
        Client::connect(home.profile(node.address).expect("profile")).await.expect("connect");
    deploy_example(&admin, "counter").await.expect("deploy");
    // Carts are for clients with certificates, unless the manifest says otherwise.
    let manifest = artifacts::manifest("cart").expect("a manifest");
    let open = manifest.replace("send = [\"client/*\"]", "send = [\"*\"]");
    assert_ne!(open, manifest);
    let cart = artifacts::component("cart").expect("a component");
    admin.deploy(&open, cart, None).await.expect("deploy");
    let token = web_token(&admin, &home).await.expect("a token");
    let scratch = artifacts::scratch("pypi").expect("a directory");
    let seed = std::env::var("SEED").unwrap_or_else(|_| "1".into());
    println!("SEED={seed}");
    let settings = home.dir().join("fuzzer.toml");
    std::fs::write(&settings, SETTINGS).expect("written");
    let fuzz = move || {
        let mut fuzzer = Command::new(from_pypi("schemathesis", FUZZER, &scratch));
        fuzzer
            .current_dir(scratch)
            .arg("--config-file")
            .arg(settings)
            .args(["run", &format!("http://{listen}/openapi.json")])
            .args(["--header", &format!("Authorization: Bearer {token}")])
            .args([
                "--seed",
                &seed,
                "--max-examples",
                "60",
                "--phases",
                "examples,coverage,fuzzing",
            ])
            // A channel's response has no end, which the fuzzer would wait for.
            .args(["--exclude-path-regex", "/channel/", "--request-timeout", "30"])
            // Which of its methods are commands, the gateway only looks up to call one.
            .args(["--checks", "all", "--exclude-checks", "allow_header_conformance"])
            .args(["--generation-database", "none", "--output-truncate", "false", "--no-color"])
            .output()
            .expect("the fuzzer")
    };
    let output = tokio::task::spawn_blocking(fuzz).await.expect("a thread");
    let said = String::from_utf8_lossy(&output.stdout);
    // JSON Schema counts 1.0 as an integer, and entities do not.
    let is_float = |line: &&str| line.contains("invalid type: floating point");
    let floats = said.lines().filter(is_float).count();
    let failures = said.lines().filter(|line| line.starts_with("- ST")).count();
    let is_true = output.status.success() || (failures > 0 && failures == floats);
    let is_complete = said.contains("Tested: 11") && !said.contains("Network Error");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(is_true && is_complete, "{failures} failures, {floats} floats\n{said}\n{errors}");
    println!("{}", said.lines().rev().take(12).collect::<Vec<_>>().join("\n"));
    admin.close().await;
    assert!(node.stop().expect("stop").success());
}
