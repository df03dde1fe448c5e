//! What web pages and callers without a token may do, how often a principal may call, and the description of types.

use ostraca_wire::proto::PolicyRequest;
use serde_json::Value;

use super::{Gateway, Response};

const ADD: &str = "/v1/default/counter/alice/call/add";

impl Gateway {
    /// Puts lines before and after the policy.
    pub(super) async fn extend_policy(&self, before: &str, after: &str) {
        let shown = self.admin.policy(PolicyRequest::default()).await.expect("a policy").text;
        let text = Some(format!("{before}\n{shown}\n{after}"));
        let request = PolicyRequest { text, ..PolicyRequest::default() };
        self.admin.policy(request).await.expect("a policy");
    }

    pub(super) async fn by_page(
        &self,
        method: &str,
        path: &str,
        origin: &str,
        more: &str,
    ) -> Response {
        let token = self.token("web", 3_600);
        let headers = format!(
            "origin: {origin}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n{more}"
        );
        let body = if method == "POST" { "1" } else { "" };
        self.send(method, path, &headers, body).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_pages_of_the_policys_origins_may_call() {
    let gateway = Gateway::start("").await;
    let shop = "https://shop.example.com";
    let own = format!("http://{}", gateway.address);
    let preflight = "access-control-request-method: POST\r\naccess-control-request-headers: authorization,idempotency-key\r\n";
    // Whatever a browser would send, nothing has run.
    for origin in [shop, "null", "https://evil.example"] {
        gateway.by_page("POST", ADD, origin, "").await.is_problem(403, "wrong-origin", "not-run");
        let asked = gateway.by_page("OPTIONS", ADD, origin, preflight).await;
        assert_eq!((asked.status, asked.header("access-control-allow-origin")), (403, ""));
    }
    let twice = gateway.by_page("POST", ADD, &own, "origin: https://evil.example\r\n").await;
    twice.is_problem(403, "wrong-origin", "not-run");
    // Some requests of other sites' pages have no origin, and say only that.
    let token = gateway.token("web", 3_600);
    let from_site = async |site: &str| {
        let headers = format!("sec-fetch-site: {site}\r\nauthorization: Bearer {token}\r\n");
        gateway.send("GET", "/v1/default/counter/alice/call/get", &headers, "").await
    };
    for site in ["cross-site", "same-site"] {
        from_site(site).await.is_problem(403, "wrong-origin", "not-run");
    }
    for site in ["same-origin", "none"] {
        assert_eq!(from_site(site).await.status, 200, "{site}");
    }
    let first = gateway.by_page("POST", ADD, &own, "").await;
    assert_eq!((first.status, first.body.as_str()), (200, "1"), "{first:?}");

    gateway.extend_policy(&format!("web-origins = [{shop:?}]"), "").await;
    let asked = gateway.by_page("OPTIONS", ADD, shop, preflight).await;
    assert_eq!((asked.status, asked.header("access-control-allow-origin")), (200, shop));
    assert!(asked.header("access-control-allow-headers").contains("idempotency-key"), "{asked:?}");
    assert!(asked.header("access-control-allow-methods").contains("POST"), "{asked:?}");
    let added = gateway.by_page("POST", ADD, shop, "").await;
    assert_eq!((added.status, added.body.as_str()), (200, "2"), "{added:?}");
    assert_eq!(added.header("access-control-allow-origin"), shop);
    assert!(added.header("access-control-expose-headers").contains("ostraca-outcome"), "{added:?}");
    // A page reads refusals, too.
    let refused = gateway.by_page("GET", ADD, shop, "").await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (405, shop));
    let evil = gateway.by_page("POST", ADD, "https://evil.example", "").await;
    evil.is_problem(403, "wrong-origin", "not-run");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_without_a_token_may_do_what_a_grant_names() {
    let gateway = Gateway::start("").await;
    let json = "content-type: application/json\r\n";
    let add = async || gateway.send("POST", ADD, json, "1").await;
    add().await.is_problem(401, "unauthenticated", "not-run");
    // A pattern that matches every principal does not name it.
    let grant = |principal: &str, role: &str| {
        format!("[[grants]]\nprincipals = [\"{principal}\"]\nroles = [\"{role}\"]\n")
    };
    gateway.extend_policy("", &grant("*", "client")).await;
    add().await.is_problem(401, "unauthenticated", "not-run");
    gateway.extend_policy("", &grant("anonymous", "viewer")).await;
    add().await.is_problem(403, "access-denied", "not-run");
    gateway.extend_policy("", &grant("anonymous", "client")).await;
    let added = add().await;
    assert_eq!((added.status, added.body.as_str()), (200, "1"), "{added:?}");
    // A token that is not valid does not become none.
    let refused =
        gateway.send("POST", ADD, &format!("{json}authorization: Bearer x\r\n"), "1").await;
    refused.is_problem(401, "invalid-token", "not-run");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_has_a_rate_of_its_own() {
    let gateway = Gateway::start("principal-rate = 2").await;
    let get = "/v1/default/counter/alice/call/get";
    let mut limited = None;
    for _ in 0..50 {
        let response = gateway.call("GET", get, "").await;
        if response.status != 200 {
            limited = Some(response);
            break;
        }
    }
    let limited = limited.expect("a limit");
    limited.is_problem(429, "rate-limited", "not-run");
    assert_eq!(limited.header("retry-after"), "1");
    let viewer = format!("authorization: Bearer {}\r\n", gateway.token("viewer", 3_600));
    let other = gateway.send("GET", get, &viewer, "").await;
    other.is_problem(403, "access-denied", "not-run");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_description_has_what_its_reader_may_use() {
    let gateway = Gateway::start("").await;
    let all = gateway.call("GET", "/openapi.json", "").await;
    assert_eq!((all.status, all.header("content-type")), (200, "application/json"), "{all:?}");
    let document = all.json();
    let paths = document["paths"].as_object().expect("paths");
    let names: Vec<&str> = paths.keys().map(String::as_str).collect();
    assert!(names.contains(&"/v1/default/counter/{id}/call/add"), "{names:?}");
    let get = &paths["/v1/default/counter/{id}/call/get"];
    assert!(get["get"]["operationId"] == "counter.get.get" && get["post"].is_object(), "{get}");
    let one = gateway.call("GET", "/openapi.json?type=counter", "").await;
    assert_eq!(one.json(), document);
    let none = gateway.call("GET", "/openapi.json?type=cart", "").await;
    none.is_problem(404, "unknown-type", "not-run");
    gateway.call("GET", "/openapi.json?x=1", "").await.is_problem(
        400,
        "invalid-query-string",
        "not-run",
    );
    gateway.send("GET", "/openapi.json", "", "").await.is_problem(
        401,
        "unauthenticated",
        "not-run",
    );
    let nobody = format!("authorization: Bearer {}\r\n", gateway.token("nobody", 3_600));
    let empty = gateway.send("GET", "/openapi.json", &nobody, "").await;
    assert_eq!(empty.json()["paths"], Value::Object(Default::default()), "{empty:?}");
    gateway.stop().await;
}
