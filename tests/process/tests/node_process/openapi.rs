//! The description of the deployed types, checked by a public fuzzer of such documents: it makes requests from the
//! document, valid ones and others, and compares the answers with what the document says.

use std::process::Command;

use ostraca_client::Client;
use ostraca_process_tests::http::web_token;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{NodeDir, NodeProcess, artifacts};
use ostraca_test_servers::free_port;
use ostraca_test_servers::python::from_pypi;

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
    for example in ["counter", "cart"] {
        deploy_example(&admin, example).await.expect("deploy");
    }
    let token = web_token(&admin, &home).await.expect("a token");
    let scratch = artifacts::scratch("pypi").expect("a directory");
    let seed = std::env::var("SEED").unwrap_or_else(|_| "1".into());
    println!("SEED={seed}");
    let fuzz = move || {
        let mut fuzzer = Command::new(from_pypi("schemathesis", FUZZER, &scratch));
        fuzzer
            .current_dir(scratch)
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
            .args(["--checks", "all", "--generation-database", "none", "--no-color"])
            .output()
            .expect("the fuzzer")
    };
    let output = tokio::task::spawn_blocking(fuzz).await.expect("a thread");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", said.lines().rev().take(12).collect::<Vec<_>>().join("\n"));
    admin.close().await;
    assert!(node.stop().expect("stop").success());
}
