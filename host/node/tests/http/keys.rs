//! Requests with idempotency keys.

use super::Gateway;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_with_a_key_runs_once() {
    let gateway = Gateway::start("[entities]\nidempotency-keys = 4").await;
    let token = gateway.token("web", 3_600);
    let send = async |path: &str, keys: &[&str], body: &str| {
        let keys: String = keys.iter().map(|key| format!("idempotency-key: {key}\r\n")).collect();
        let headers =
            format!("authorization: Bearer {token}\r\ncontent-type: application/json\r\n{keys}");
        gateway.send("POST", path, &headers, body).await
    };
    let add = "/v1/default/counter/alice/call/add";
    let first = send(add, &["one"], "5").await;
    assert_eq!((first.status, first.body.as_str()), (200, "5"), "{first:?}");
    // The quotes of a structured header are not part of the key.
    let again = send(add, &["\"one\""], "5").await;
    assert_eq!((again.status, &again.body), (200, &first.body), "{again:?}");
    let version = "ostraca-entity-version";
    assert_eq!(again.header(version), first.header(version));
    send(add, &["one"], "6").await.is_problem(422, "idempotency-key-reused", "not-run");
    let other = send("/v1/default/counter/bob/call/add", &["one"], "6").await;
    assert_eq!(other.body, "6", "another entity's key is another key");

    // A refusal of the entity is its outcome, and is repeated.
    let refused = send(add, &["two"], "\"x\"").await;
    refused.is_problem(400, "invalid-arguments", "application-error");
    let again = send(add, &["two"], "\"x\"").await;
    assert_eq!(again.header(version), refused.header(version));

    // Many at the same time run once, too.
    let calls = (0..20).map(|_| send("/v1/default/counter/hot/call/add", &["one"], "1"));
    for response in futures::future::join_all(calls).await {
        assert_eq!((response.status, response.body.as_str()), (200, "1"), "{response:?}");
    }
    let full = send(add, &["three"], "1").await;
    full.is_problem(429, "too-many-idempotency-keys", "not-run");
    for keys in [&[""][..], &["a", "b"], &["a b"], &["\"\""], &[&"k".repeat(256)]] {
        send(add, keys, "1").await.is_problem(400, "invalid-header", "not-run");
    }
    let read = gateway.call("GET", "/v1/default/counter/alice/call/get", "").await;
    assert_eq!(read.body, "5");
    gateway.stop().await;
}
