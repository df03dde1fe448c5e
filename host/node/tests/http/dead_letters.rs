//! Dead letters that operators resend and drop over HTTP (R19).

use ostraca_client::{CallOptions, DeadLettersRequest, MessageKind};
use ostraca_wire::proto::AuditRequest;
use serde_json::json;

use super::roles::{ROLES, policy};
use super::*;

const MISBEHAVING: &str = "type = \"misbehaving\"\ncomponent = \"misbehaving.wasm\"\n[grants]\ntell = [\"misbehaving\"]\n";
const SENDER: &str = "/v1/default/misbehaving/a%2Fb";

impl Gateway {
    async fn handle(&self, who: &str, action: &str, key: &str, body: &str) -> Response {
        let token = self.token(who, 600);
        let headers =
            format!("authorization: Bearer {token}\r\ncontent-type: application/json\r\n{key}");
        self.send("POST", &format!("{SENDER}/dead-letters/{action}"), &headers, body).await
    }

    /// The numbers of the dead letters, once there are this many.
    async fn letters(&self, count: usize) -> Vec<u64> {
        let request = || DeadLettersRequest { r#type: "misbehaving".into(), ..Default::default() };
        let began = Instant::now();
        loop {
            let letters = self.admin.dead_letters(request()).await.expect("listed").dead_letters;
            let numbers: Vec<_> =
                letters.iter().filter_map(|it| it.tell.as_ref()).map(|it| it.number).collect();
            if numbers.len() == count {
                return numbers;
            }
            assert!(began.elapsed() < SOON, "{numbers:?}, not {count}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r19_dead_letters_are_handled_over_http() {
    let gateway = Gateway::start("[entities]\ntell-attempts = 1").await;
    let request =
        PolicyRequest { text: Some(policy(&gateway)), force: true, ..PolicyRequest::default() };
    gateway.admin.policy(request).await.expect("set");
    gateway.admin.deploy(MISBEHAVING, guest("misbehaving"), None).await.expect("deployed");
    let session = gateway.admin.session();
    let command = CallOptions { kind: MessageKind::Command, ..CallOptions::default() };
    let send = async |id: &str, method: &str, body: serde_json::Value| {
        let entity = Entity::new("misbehaving", id);
        session.send(&entity, method, body.to_string(), &command).await.expect("sent")
    };
    for number in 0..4 {
        let body = format!("\"{number}\"");
        let tell = json!({"of": "misbehaving", "id": "target", "method": "note_if_open", "body": body, "count": 1});
        send("a/b", "tell", tell).await;
    }
    let [first, second, third, _] = gateway.letters(4).await[..] else { panic!("four") };
    let named = |numbers: &[u64]| {
        let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
        json!({ "numbers": numbers }).to_string()
    };

    // Only those who may manage the type.
    let began = Instant::now();
    while gateway.handle("operator", "drop", "", &named(&[77_777])).await.status != 404 {
        assert!(began.elapsed() < SOON, "the policy does not arrive");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (name, ..) in ROLES.into_iter().filter(|(name, ..)| *name != "operator") {
        let denied = gateway.handle(name, "drop", "", &named(&[first])).await;
        denied.is_problem(403, "access-denied", "not-run");
    }
    let handle =
        async |action: &str, body: &str| gateway.handle("operator", action, "", body).await;
    for body in ["{\"numbers\":[7]}", "{\"numbers\":[]}", "[]", "", "{\"all\":true}"] {
        handle("drop", body).await.is_problem(400, "invalid-request", "not-run");
    }
    handle("forget", &named(&[first])).await.is_problem(404, "unknown-path", "not-run");
    let token = gateway.token("operator", 600);
    let get = format!("{SENDER}/dead-letters/resend");
    let get = gateway.send("GET", &get, &format!("authorization: Bearer {token}\r\n"), "").await;
    get.is_problem(405, "wrong-method", "not-run");
    assert_eq!(gateway.letters(4).await[0], first, "nothing has been handled");

    // Those that do not exist are left out, and a request with a key runs once.
    let key = "idempotency-key: one\r\n";
    let dropped = gateway.handle("operator", "drop", key, &named(&[first, 77_777])).await;
    assert_eq!(dropped.status, 200, "{dropped:?}");
    assert_eq!(dropped.json(), json!({ "handled": [first.to_string()] }));
    assert_eq!(dropped.header("ostraca-outcome"), "result");
    let again = gateway.handle("operator", "drop", key, &named(&[first, 77_777])).await;
    assert_eq!(again.json(), dropped.json(), "the recorded answer");
    handle("drop", &named(&[first])).await.is_problem(404, "unknown-dead-letter", "not-run");
    send("target", "open", json!(null)).await;
    let resent = handle("resend", &named(&[second, third])).await;
    assert_eq!(resent.json(), json!({ "handled": [second.to_string(), third.to_string()] }));
    let left = gateway.letters(1).await;
    assert!(left[0] > third, "{left:?}");
    let began = Instant::now();
    let target = Entity::new("misbehaving", "target");
    while session.query(&target, "notes", "").await.expect("notes").body != "[\"1\",\"2\"]" {
        assert!(began.elapsed() < SOON, "the notes do not arrive");
    }
    let audit = gateway.admin.audit(AuditRequest::default()).await.expect("an audit log");
    let actions = format!("{audit:?}");
    assert!(actions.contains("dead-letters resend") && actions.contains("dead-letters drop"));
    gateway.stop().await;
}
