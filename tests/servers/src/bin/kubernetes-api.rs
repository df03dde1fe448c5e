//! The test API server as a program: `kubernetes-api PORT [TOKEN]`. It ends when its input does.
#![allow(clippy::print_stdout, reason = "a program for tests")]

use std::io::Read;

use ostraca_test_servers::kubernetes::ApiServer;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().and_then(|port| port.parse().ok()).unwrap_or_default();
    let server = ApiServer::start_on(port);
    if let Some(token) = arguments.next() {
        let verbs =
            ["list", "watch", "create", "update", "delete"].map(|verb| format!("{verb} leases"));
        let mut verbs: Vec<&str> = verbs.iter().map(String::as_str).collect();
        verbs.push("get pods");
        server.restrict(&[(&token, &verbs)]);
    }
    println!("{}", server.url());
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
}
