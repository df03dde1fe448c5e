//! How profiles are found, read and refused, and the client's error when no node can be reached.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::{Node, Running, authority, in_time, result};
use ostraca_client::{Client, ConnectError, ConnectOptions, Entity, Profile, ProfileError};
use ostraca_codes::codes;
use ostraca_wire::proto::{DeployResult, Status};
use ostraca_wire::server::{AdminOperation, AdminOutput};

#[test]
fn the_nearest_profile_above_is_found_or_advice_is_given() {
    let home = tempfile::tempdir().expect("directory");
    let deep = home.path().join("a/b/c");
    std::fs::create_dir_all(&deep).expect("directories");
    let error = Profile::find_above(&deep).expect_err("none");
    let text = error.to_string();
    assert!(text.contains("ostraca dev") && text.contains("OSTRACA_PROFILE"), "{text}");
    assert!(text.contains(&deep.display().to_string()), "{text}");

    let ca = authority();
    let identity = ca.issue_client("test").expect("identity");
    let profile = Profile::new(vec!["127.0.0.1:1".into()], ca.certificate_pem(), &identity);
    let path = home.path().join("a/.ostraca/profile.toml");
    profile.save(&path).expect("saved");
    let mode = std::fs::metadata(&path).expect("file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let found = Profile::find_above(&deep).expect("found");
    assert_eq!(
        (found.cluster_id, found.addresses),
        (profile.cluster_id.clone(), profile.addresses)
    );
    assert_eq!(found.namespace, "default");
    assert!(!format!("{:?}", Profile::load(&path).expect("read")).contains("PRIVATE"));
}

#[test]
fn profile_paths_are_relative_and_unknown_keys_are_errors() {
    let home = tempfile::tempdir().expect("directory");
    let ca = authority();
    ca.save(home.path()).expect("saved");
    ca.issue_client("test").expect("identity").save(home.path(), "me").expect("saved");
    let text = format!(
        "cluster_id = \"{}\"\naddresses = []\nca = \"ca.pem\"\ncertificate = \"me.pem\"\nkey = \"me.key\"\n",
        ca.cluster()
    );
    let path = home.path().join("profile.toml");
    std::fs::write(&path, &text).expect("written");
    assert!(Profile::load(&path).expect("read").key.contains("PRIVATE"));
    let old = text.replace("cluster_id", "cluster");
    for (wrong, named) in [(format!("{text}colour = 1\n"), "colour"), (old, "`cluster_id`")] {
        std::fs::write(&path, wrong).expect("written");
        let error = Profile::load(&path).expect_err("refused");
        assert!(matches!(error, ProfileError::Invalid { .. }));
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[tokio::test]
async fn a_client_says_why_it_cannot_connect() {
    in_time(async {
        let (ca, other) = (authority(), authority());
        let identity = ca.issue_client("test").expect("identity");
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("socket");
        let nobody = socket.local_addr().expect("address").to_string();
        let options = ConnectOptions {
            connect_timeout: std::time::Duration::from_millis(200),
            ..ConnectOptions::default()
        };
        let profile = Profile::new(vec![nobody.clone()], ca.certificate_pem(), &identity);
        let error = Client::connect_with(profile, options).await.err().expect("no node");
        assert!(matches!(error, ConnectError::NoNodeReachable { .. }));
        let text = error.to_string();
        assert!(text.contains(&nobody) && text.contains("ostraca dev"), "{text}");

        let mixed = Profile::new(vec![nobody.clone()], other.certificate_pem(), &identity);
        let error = Client::connect(mixed).await.err().expect("two clusters");
        assert_eq!(error.code(), "invalid-profile");

        let node = Node::new(|_, request| request.ticket.reply(result(1, "")));
        let running = Running::start(&other, &node, "127.0.0.1:0");
        let wrong = Profile::new(vec![running.address.clone()], ca.certificate_pem(), &identity);
        let error = Client::connect(wrong).await.err().expect("another cluster");
        assert_eq!(error.code(), "unknown-ca", "{error}");

        // The second address responds.
        let identity = other.issue_client("test").expect("identity");
        let addresses = vec!["not an address".into(), running.address.clone()];
        let right = Profile::new(addresses, other.certificate_pem(), &identity);
        let client = Client::connect(right).await.expect("connect");
        client.session().call(&Entity::new("a", "b"), "c", "").await.expect("reply");
        client.close().await;
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn admin_requests_get_a_response_or_the_nodes_problem() {
    in_time(async {
        let ca = authority();
        let node = Node::with_admin(
            |_, _| {},
            |request| match request {
                AdminOperation::Deploy(upload) => Ok(AdminOutput::Deployed(DeployResult {
                    r#type: "counter".into(),
                    revision: 1,
                    digest: upload.digest.to_vec().into(),
                    unchanged: upload.expected_revision == Some(1),
                    ..DeployResult::default()
                })),
                AdminOperation::Deployments(_) => Ok(AdminOutput::Deployments(Vec::new())),
                AdminOperation::Status => Ok(AdminOutput::Status(Box::new(Status {
                    node: "one".into(),
                    metrics: [("turns".to_owned(), 3)].into(),
                    ..Status::default()
                }))),
                AdminOperation::Methods(kind) => {
                    let mut unknown =
                        ostraca_wire::problem(codes::UNKNOWN_TYPE, format!("no {kind}"));
                    unknown.help = "did you mean counter?".into();
                    Err(unknown)
                }
                AdminOperation::Node => Ok(AdminOutput::Node(Default::default())),
                _ => Err(ostraca_wire::problem(codes::UNKNOWN_REQUEST, "not in this test")),
            },
        );
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = common::client(&ca, &running.address).await;
        let component = bytes::Bytes::from(vec![1; 3 << 20]);
        let digest = blake3::hash(&component);
        let deployed = client.deploy("type = \"counter\"", component, Some(1)).await;
        let deployed = deployed.expect("deployed");
        assert!(deployed.unchanged && deployed.digest[..] == digest.as_bytes()[..]);
        let large = bytes::Bytes::from(vec![0; (64 << 20) + 1]);
        let error = client.deploy("", large, None).await.expect_err("too large");
        assert_eq!(error.code(), "component-too-large");
        assert!(client.deployments().await.expect("none").is_empty());
        assert_eq!(client.status().await.expect("status").metrics["turns"], 3);
        let error = client.methods("cuonter").await.expect_err("unknown");
        assert_eq!(error.code(), "unknown-type");
        client.node().await.expect("node");
        client.close().await;
        running.stop().await;
    })
    .await;
}
