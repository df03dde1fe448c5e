//! Calls whose arguments and results the compiler checks.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Node, Running, authority, client, in_time, result};
use ostraca_client::{CallError, CallOptions, InvokeError, MessageKind};
use ostraca_sdk::entity;
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Counter {
    value: u64,
}

#[entity(type = "counter", export = false, schemas = false)]
impl Counter {
    #[message]
    fn add(&mut self, by: u64) -> u64 {
        self.value += by;
        self.value
    }

    #[message]
    fn get(&self) -> u64 {
        self.value
    }
}

#[tokio::test]
async fn a_typed_call_sends_its_method_and_decodes_the_result() {
    in_time(async {
        let ca = authority();
        let node = Node::new(|_, request| {
            let body = match request.envelope.method.as_str() {
                "add" => Bytes::from_static(b"7"),
                _ => Bytes::from_static(b"\"text\""),
            };
            request.ticket.reply(result(1, body));
        });
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = client(&ca, &running.address).await;
        let session = client.session();
        let options = CallOptions { timeout: Duration::from_secs(10), ..CallOptions::default() };
        let sum = session.invoke(&Counter::at("alice").add(5), &options).await;
        assert_eq!(sum.expect("the result"), 7);
        let seen = node.seen.lock().expect("seen")[0].clone();
        assert_eq!((seen.r#type.as_str(), seen.id.as_str()), ("counter", "alice"));
        assert_eq!((seen.method.as_str(), seen.kind()), ("add", MessageKind::Command));
        assert_eq!(seen.body.as_ref(), b"{\"by\":5}");
        let wrong = session.invoke(&Counter::at("alice").get(), &options).await;
        assert!(
            matches!(&wrong, Err(InvokeError::InvalidResult { method, .. }) if &**method == "get"),
            "{wrong:?}"
        );
        assert_eq!(node.seen.lock().expect("seen")[1].kind(), MessageKind::Query);
        client.close().await;
        let closed = session.invoke(&Counter::at("alice").get(), &options).await;
        assert!(matches!(closed, Err(InvokeError::Call(CallError::NotRun { .. }))), "{closed:?}");
        running.stop().await;
    })
    .await;
}
