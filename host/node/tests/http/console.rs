//! Operators' requests over HTTP, and the console's log-in.

use std::time::Duration;

use ostraca_client::{AdminError, DeadLettersRequest, EntitiesRequest, Profile};
use ostraca_wire::proto::AuditRequest;
use serde_json::json;

use super::roles::{ROLES, policy};
use super::*;

const JSON: &str = "content-type: application/json\r\n";

/// Each request with the roles that may send it, by their first letters: operator, deployer, client, viewer, support, one
/// with a role elsewhere, and nobody.
const REQUESTS: [(&str, &str, &str); 19] = [
    ("who-am-i", "{}", "odcvsen"),
    ("nodes", "{}", "odcvse"),
    ("status", "{}", "odvs"),
    ("shards", r#"{"first":1,"limit":2}"#, "odvs"),
    ("figures", "{}", "odvs"),
    ("pauses", "{}", "odvs"),
    ("events", "{}", "odvs"),
    ("rebalance", r#"{"dryRun":true}"#, "odvs"),
    ("deployments", "{}", "odvse"),
    ("methods", r#"{"type":"counter"}"#, "odcvs"),
    ("entities", r#"{"type":"counter"}"#, "odvs"),
    ("dead-letters", r#"{"type":"counter"}"#, "odvs"),
    ("inspect", r#"{"type":"counter","id":"alice"}"#, "odvs"),
    ("inspect", r#"{"type":"counter","id":"alice","values":true}"#, "os"),
    ("activate", r#"{"type":"counter","revision":"77"}"#, "od"),
    ("drain", r#"{"node":"nowhere"}"#, "o"),
    ("forget", r#"{"node":"nowhere"}"#, "o"),
    ("audit", "{}", "o"),
    ("audit", r#"{"principal":"client/admin"}"#, "o"),
];

impl Gateway {
    async fn ask(&self, request: &str, headers: &str, body: &str) -> Response {
        self.send("POST", &format!("/v1/admin/{request}"), &format!("{JSON}{headers}"), body).await
    }

    fn origin(&self) -> String {
        format!("origin: http://{}\r\n", self.address)
    }

    /// Logs in, and returns the header with the cookie.
    async fn log_in(&self, token: &str) -> String {
        let body = json!({ "token": token }).to_string();
        let headers = format!("{JSON}{}", self.origin());
        let response = self.send("POST", "/console/login", &headers, &body).await;
        assert_eq!(response.status, 204, "{response:?}");
        let cookie = response.header("set-cookie");
        let (pair, attributes) = cookie.split_once("; ").expect("attributes");
        assert!(pair.starts_with("__Host-ostraca-"), "{cookie}");
        for attribute in ["Path=/", "Secure", "HttpOnly", "SameSite=Strict"] {
            assert!(attributes.split("; ").any(|it| it == attribute), "{cookie}");
        }
        format!("cookie: {pair}\r\n")
    }
}

/// Whether a request was permitted, whatever else became of it.
fn is_permitted(response: &Response) -> bool {
    let code = response.header("ostraca-error-code");
    assert!(matches!(response.status, 200 | 400 | 403 | 404), "{response:?}");
    code != "access-denied"
}

/// The same over QUIC.
async fn is_permitted_over_quic(client: &Client, request: &str, body: &str) -> bool {
    let alice = Entity::new("counter", "alice");
    let counter = "counter".to_owned();
    let dead = DeadLettersRequest { r#type: counter.clone(), ..DeadLettersRequest::default() };
    let listed = EntitiesRequest { r#type: counter, ..EntitiesRequest::default() };
    let result: Result<(), AdminError> = match request {
        "who-am-i" => client.who_am_i().await.map(drop),
        "nodes" => client.nodes().await.map(drop),
        "status" => client.status().await.map(drop),
        "shards" => client.shards().await.map(drop),
        "figures" => client.figures().await.map(drop),
        "pauses" => client.pauses().await.map(drop),
        "events" => match client.events(false, 0).await {
            Ok(mut events) => events.next().await.map(drop),
            Err(error) => Err(error),
        },
        "rebalance" => client.rebalance_plan().await.map(drop),
        "deployments" => client.deployments().await.map(drop),
        "methods" => client.methods("counter").await.map(drop),
        "entities" => client.entities(listed).await.map(drop),
        "dead-letters" => client.dead_letters(dead).await.map(drop),
        "inspect" => client.inspect(&alice, body.contains("values")).await.map(drop),
        "activate" => client.activate("counter", Some(77)).await.map(drop),
        "drain" => match client.drain("nowhere", false).await {
            Ok(mut progress) => progress.next().await.map(drop),
            Err(error) => Err(error),
        },
        "forget" => client.forget("nowhere").await.map(drop),
        "audit" => client.audit(AuditRequest::default()).await.map(drop),
        other => unreachable!("{other}"),
    };
    result.err().is_none_or(|error| error.code() != "access-denied")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_may_ask_the_same_by_token_cookie_and_quic() {
    let gateway = Gateway::start("").await;
    let text = Some(policy(&gateway));
    let request = PolicyRequest { text, force: true, ..PolicyRequest::default() };
    gateway.admin.policy(request).await.expect("set");
    let token = format!("authorization: Bearer {}\r\n", gateway.token("operator", 600));
    let began = Instant::now();
    // The policy must have reached the node.
    while !is_permitted(&gateway.ask("audit", &token, "{}").await) {
        assert!(began.elapsed() < SOON, "the policy does not arrive");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (name, ..) in ROLES {
        let token = gateway.token(name, 600);
        let by_token = format!("authorization: Bearer {token}\r\n");
        let by_cookie = gateway.log_in(&token).await + &gateway.origin();
        let file = gateway.cluster.ca.with_file_name(format!("asking-{name}"));
        std::fs::write(&file, &token).expect("written");
        let (addresses, cluster) =
            (vec![gateway.node.address().to_string()], gateway.cluster.cluster);
        let profile = Profile::with_token(addresses, cluster, &gateway.cluster.ca_pem, file);
        let client = Client::connect(profile).await.expect("a connection");
        for (request, body, roles) in REQUESTS {
            let expected = roles.contains(&name[..1]);
            let what = format!("{name}: {request} {body}");
            let found = is_permitted(&gateway.ask(request, &by_token, body).await);
            assert_eq!(found, expected, "{what} with a token");
            let found = is_permitted(&gateway.ask(request, &by_cookie, body).await);
            assert_eq!(found, expected, "{what} with a cookie");
            let found = is_permitted_over_quic(&client, request, body).await;
            assert_eq!(found, expected, "{what} over QUIC");
        }
        client.close().await;
    }
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_requests_are_answered_in_json() {
    let gateway = Gateway::start("").await;
    gateway.extend_policy("", OPERATOR).await;
    let token = format!("authorization: Bearer {}\r\n", gateway.token("op", 600));
    let add = "/v1/default/counter/a%2Fb/call/add";
    assert_eq!(gateway.call("POST", add, "5").await.status, 200);
    let ask = async |request: &str, body: &str| {
        let response = gateway.ask(request, &token, body).await;
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(response.header("content-type"), "application/json", "{request}");
        assert_eq!(response.header("cache-control"), "no-store");
        response.json()
    };
    // Without a body, all fields have their defaults.
    let nodes = ask("nodes", "").await;
    assert_eq!(nodes["nodes"]["nodes"][0]["status"], "NODE_STATUS_LIVE", "{nodes}");
    let known = ask("who-am-i", "{}").await;
    assert_eq!(known["whoAmI"]["principal"], "token/ostraca/op", "{known}");
    assert_eq!(known["whoAmI"]["roles"], json!(["operator"]));
    let types = &known["whoAmI"]["types"];
    assert!(types[0]["permissions"].to_string().contains("read-state"), "{known}");
    let shards = ask("shards", r#"{"first":2,"limit":2}"#).await;
    let numbers: Vec<_> = shards["shards"]["shards"]
        .as_array()
        .expect("shards")
        .iter()
        .map(|it| &it["shard"])
        .collect();
    assert_eq!(numbers, [2, 3], "{shards}");
    let entity = ask("inspect", r#"{"type":"counter","id":"a/b","values":true}"#).await;
    assert_eq!(
        (&entity["entity"]["exists"], &entity["entity"]["version"]),
        (&json!(true), &json!("1"))
    );
    let page = ask("entities", r#"{"type":"counter","limit":1}"#).await;
    assert_eq!(page["entities"]["entities"].as_array().map(Vec::len), Some(1), "{page}");

    let refused = async |request: &str, body: &str, status, code| {
        gateway.ask(request, &token, body).await.is_problem(status, code, "not-run");
    };
    for request in
        ["deploy", "backup", "variables", "policy", "nodes%00", "Nodes", "who_am_i", "%ff"]
    {
        refused(request, "{}", 404, "unknown-request").await;
    }
    for body in ["[]", "{\"x\":1}", "{\"first\":-1}", "{\"first\":\"x\"}", "{} {}"] {
        refused("shards", body, 400, "invalid-request").await;
    }
    refused("shards", "{", 400, "invalid-request").await;
    refused("shards", r#"{"first":1000000}"#, 404, "unknown-shard").await;
    refused("inspect", r#"{"type":"counter"}"#, 400, "invalid-request").await;
    refused("inspect", r#"{"type":"cuonter","id":"a"}"#, 404, "unknown-type").await;
    refused("entities", r#"{"cursor":"!!"}"#, 400, "invalid-request").await;
    refused("entities", r#"{"cursor":"AAAA"}"#, 400, "invalid-cursor").await;
    refused("drain", r#"{"node":""}"#, 400, "invalid-request").await;
    // A page is never larger than 1,000, whatever was asked for.
    ask("entities", r#"{"limit":4000000000}"#).await;
    let get = gateway.send("GET", "/v1/admin/nodes", &token, "").await;
    get.is_problem(405, "wrong-method", "not-run");
    let text = gateway.send("POST", "/v1/admin/nodes", &token, "{}").await;
    text.is_problem(415, "not-json", "not-run");
    gateway.ask("nodes", "", "{}").await.is_problem(401, "unauthenticated", "not-run");
    gateway.stop().await;
}

const OPERATOR: &str = "[[grants]]\nprincipals = [\"token/ostraca/op\"]\nroles = [\"operator\"]\n";

/// Reads lines of a response that goes on, until one contains a text.
async fn until_line(stream: &mut TcpStream, text: &str) -> String {
    let mut all = Vec::new();
    let reading = async {
        loop {
            let found = String::from_utf8_lossy(&all).into_owned();
            if found.contains(text) || stream.read_buf(&mut all).await.expect("more") == 0 {
                return found;
            }
        }
    };
    tokio::time::timeout(SOON, reading).await.expect("a line")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followed_events_end_when_the_token_is_revoked() {
    let gateway = Gateway::start("").await;
    gateway.extend_policy("", OPERATOR).await;
    let cookie = gateway.log_in(&gateway.token("op", 600)).await;
    let body = "{\"follow\":true}";
    let mut stream = gateway.connect().await;
    let request = format!(
        "POST /v1/admin/events HTTP/1.1\r\nhost: {}\r\n{cookie}{}{JSON}content-length: {}\r\n\r\n{body}",
        gateway.address,
        gateway.origin(),
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let first = until_line(&mut stream, "shard-assigned").await;
    assert!(first.contains("application/x-ndjson"), "{first}");
    let revoke = vec!["token-id/ostraca/id-op".to_owned()];
    let request = RevocationsRequest { revoke, ..RevocationsRequest::default() };
    gateway.admin.revocations(request).await.expect("revoked");
    let rest = until_line(&mut stream, "problem").await;
    assert!(rest.contains("\"code\":\"revoked\""), "{rest}");
    let refused = gateway.ask("nodes", &format!("{cookie}{}", gateway.origin()), "{}").await;
    refused.is_problem(401, "revoked", "not-run");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cookie_is_only_for_the_gateways_own_pages() {
    let gateway = Gateway::start("").await;
    let cookie = gateway.log_in(&gateway.token("web", 600)).await;
    let add = "/v1/default/counter/alice/call/add";
    let with = async |method: &str, path: &str, more: &str, body: &str| {
        gateway.send(method, path, &format!("{cookie}{JSON}{more}"), body).await
    };
    let own = gateway.origin();
    let added = with("POST", add, &own, "1").await;
    assert_eq!((added.status, added.body.as_str()), (200, "1"), "{added:?}");
    // Neither another port of this machine, nor a request that says nothing of its page, nor an origin of the policy.
    let neighbour = "origin: http://localhost:3000\r\n";
    gateway.extend_policy("web-origins = [\"http://localhost:3000\"]", "").await;
    let began = Instant::now();
    while gateway.by_page("POST", add, "http://localhost:3000", "").await.status != 200 {
        assert!(began.elapsed() < SOON, "the policy does not arrive");
    }
    for more in [neighbour, "", "sec-fetch-site: same-site\r\n", "origin: null\r\n"] {
        with("POST", add, more, "1").await.is_problem(403, "wrong-origin", "not-run");
        with("POST", "/v1/admin/nodes", more, "{}").await.is_problem(
            403,
            "wrong-origin",
            "not-run",
        );
        let login = with("POST", "/console/login", more, "{\"token\":\"x\"}").await;
        login.is_problem(403, "wrong-origin", "not-run");
    }
    let get = "/v1/default/counter/alice/call/get";
    with("GET", get, neighbour, "").await.is_problem(403, "wrong-origin", "not-run");
    assert_eq!(with("GET", get, "sec-fetch-site: same-origin\r\n", "").await.body, "2");
    // A token in the header counts more than the cookie.
    let viewer = format!("authorization: Bearer {}\r\n", gateway.token("viewer", 600));
    with("GET", get, &viewer, "").await.is_problem(403, "access-denied", "not-run");

    let wrong = async |body: &str, status, code| {
        let headers = format!("{JSON}{own}");
        let response = gateway.send("POST", "/console/login", &headers, body).await;
        response.is_problem(status, code, "not-run");
        assert_eq!(response.header("set-cookie"), "");
    };
    wrong("{\"token\":\"nonsense\"}", 401, "invalid-token").await;
    wrong("{\"token\":\"a\\nb\"}", 400, "not-json").await;
    wrong("{\"link\":\"00000000000000000000000000000000\"}", 401, "unauthenticated").await;
    wrong("{\"token\":1}", 400, "not-json").await;
    wrong("nonsense", 400, "not-json").await;
    wrong(&format!("{{\"token\":\"{}\"}}", "x".repeat(40_000)), 400, "not-json").await;
    let out = with("POST", "/console/logout", &own, "{}").await;
    assert_eq!(out.status, 204);
    assert!(out.header("set-cookie").contains("Max-Age=0"), "{out:?}");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_console_link_logs_in_once() {
    let gateway = Gateway::start("").await;
    let token = gateway.token("web", 600);
    let link = gateway.node.console_link(&token).expect("a link");
    let (page, code) = link.split_once("#link=").expect("a code");
    assert!(page.ends_with("/console/") && !link.contains(&token), "{link}");
    let body = json!({ "link": code }).to_string();
    let headers = format!("{JSON}{}", gateway.origin());
    let login = async || gateway.send("POST", "/console/login", &headers, &body).await;
    let first = login().await;
    assert_eq!(first.status, 204, "{first:?}");
    assert!(first.header("set-cookie").contains(&token));
    login().await.is_problem(401, "unauthenticated", "not-run");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_served_to_everybody_under_a_strict_policy() {
    let gateway = Gateway::start("").await;
    let get = async |path: &str, headers: &str| gateway.send("GET", path, headers, "").await;
    let page = get("/console/", "sec-fetch-site: cross-site\r\n").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    let policy = page.header("content-security-policy");
    for wanted in [
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.split("; ").any(|it| it == wanted), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    let tag = page.header("etag").to_owned();
    let again = get("/console/", &format!("if-none-match: {tag}\r\n")).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""), "{again:?}");
    for file in ["main.js", "style.css", "icon.svg"] {
        assert_eq!(get(&format!("/console/{file}"), "").await.status, 200, "{file}");
    }
    for path in ["/", "/console"] {
        let moved = get(path, "").await;
        assert_eq!((moved.status, moved.header("location")), (303, "/console/"), "{path}");
    }
    for path in ["/console/nothing.js", "/console/..%2FCargo.toml", "/console/a/b"] {
        get(path, "").await.is_problem(404, "unknown-path", "not-run");
    }
    let wrong = gateway.raw(b"GET /console/ HTTP/1.1\r\nhost: evil.example\r\n\r\n").await;
    wrong.expect("a response").is_problem(421, "wrong-host", "not-run");
    gateway.stop().await;
}
