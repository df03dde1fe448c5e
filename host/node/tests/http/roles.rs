//! Each role may do the same over HTTP as over QUIC, with the same token.

use std::time::Duration;

use ostraca_client::{CallError, Profile, SubscribeFrom};

use super::*;

/// The roles of the holders of tokens, by name, and what each may do: send commands and queries, follow channels, and
/// see the description of the type.
pub(super) const ROLES: [(&str, &str, &str); 7] = [
    ("operator", "roles = [\"operator\"]", "cqfo"),
    ("deployer", "roles = [\"deployer\"]", "o"),
    ("client", "roles = [\"client\"]", "cqfo"),
    ("viewer", "roles = [\"viewer\"]", "o"),
    ("support", "roles = [\"support\"]", "qfo"),
    ("elsewhere", "roles = [\"operator\"]\ntypes = [\"other\"]", ""),
    ("nobody", "", ""),
];

pub(super) fn policy(gateway: &Gateway) -> String {
    let jwks = signing_key(&gateway.cluster.ca).expect("a key").jwks();
    let mut text = format!(
        "[issuers.ostraca]\nissuer = \"ostraca\"\njwks = '''{jwks}'''\n\
         [roles.support]\npermissions = [\"query\", \"view\", \"read-state\"]\n\
         [[grants]]\nprincipals = [\"client/admin\"]\nroles = [\"operator\"]\n"
    );
    for (name, roles, _) in ROLES.iter().filter(|(_, roles, _)| !roles.is_empty()) {
        text += &format!("[[grants]]\nprincipals = [\"token/ostraca/{name}\"]\n{roles}\n");
    }
    text
}

/// What the holder of a token may do over HTTP, as one letter for each operation.
async fn over_http(gateway: &Gateway, name: &str) -> String {
    let token = gateway.token(name, 600);
    let send = async |method: &str, path: &str, body: &str| {
        let headers =
            format!("authorization: Bearer {token}\r\ncontent-type: application/json\r\n");
        gateway.send(method, path, &headers, body).await
    };
    let is_permitted = |response: &Response| match response.status {
        403 => {
            assert_eq!(response.header("ostraca-error-code"), "access-denied", "{response:?}");
            false
        }
        200 => true,
        _ => panic!("{response:?}"),
    };
    let alice = "/v1/default/counter/alice";
    let mut letters = String::new();
    let mut add = |letter: char, permitted: bool| letters.extend(permitted.then_some(letter));
    add('c', is_permitted(&send("POST", &format!("{alice}/call/add"), "1").await));
    let queried = is_permitted(&send("GET", &format!("{alice}/call/get"), "").await);
    add('q', queried);
    let posted = is_permitted(&send("POST", &format!("{alice}/call/get"), "").await);
    assert_eq!(posted, queried, "a query by POST");
    add('f', is_permitted(&send("GET", &format!("{alice}/channel/news"), "").await));
    let described = send("GET", "/openapi.json", "").await;
    add('o', described.status == 200 && described.body.contains("/counter/"));
    letters
}

/// The same over QUIC.
async fn over_quic(gateway: &Gateway, name: &str) -> String {
    let file = gateway.cluster.ca.with_file_name(format!("token-{name}"));
    std::fs::write(&file, gateway.token(name, 600)).expect("written");
    let address = gateway.node.address().to_string();
    let cluster = gateway.cluster.cluster;
    let profile = Profile::with_token(vec![address], cluster, &gateway.cluster.ca_pem, file);
    let client = Client::connect(profile).await.expect("a connection");
    let alice = Entity::new("counter", "alice");
    let session = client.session();
    let may = |result: Result<(), CallError>| match result {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.code(), "access-denied");
            false
        }
    };
    let mut letters = String::new();
    let mut add = |letter: char, permitted: bool| letters.extend(permitted.then_some(letter));
    add('c', may(session.command(&alice, "add", "1").await.map(drop)));
    add('q', may(session.query(&alice, "get", "").await.map(drop)));
    let mut items = client.subscribe(&alice, "news", SubscribeFrom::Oldest);
    let refused = items.established().await.err();
    add('f', refused.is_none_or(|error| error.code() != "access-denied"));
    drop(items);
    add('o', client.methods("counter").await.is_ok());
    client.close().await;
    letters
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_may_do_the_same_over_http_and_quic() {
    let gateway = Gateway::start("").await;
    let request =
        PolicyRequest { text: Some(policy(&gateway)), force: true, ..PolicyRequest::default() };
    gateway.admin.policy(request).await.expect("set");
    let began = Instant::now();
    for (name, _, allowed) in ROLES {
        // The policy must have reached the node.
        while over_http(&gateway, name).await != allowed {
            assert!(began.elapsed() < SOON, "{name} may not do {allowed} over HTTP");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(over_http(&gateway, name).await, allowed, "{name} over HTTP");
        assert_eq!(over_quic(&gateway, name).await, allowed, "{name} over QUIC");
    }
    gateway.stop().await;
}
