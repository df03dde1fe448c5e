//! Asks: which asks a guest may send, and how it waits for the answers (R20, R22).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::{command, failed, host, identity, misbehaving, ok, prepare, query, started, values};
use ostraca_wasm::{
    AskAnswer, AskReply, AskSink, GuestAsk, GuestTurnOutput, Instance, InstanceLimits,
    InstanceSpec, MessageContext, NoState, StartReason, TurnRecords,
};

/// Collects the asks of a turn.
#[derive(Debug, Default)]
struct Asks(Mutex<Vec<(u32, GuestAsk, AskReply)>>);

impl AskSink for Asks {
    fn ask(&self, place: u32, ask: GuestAsk, reply: AskReply) {
        self.0.lock().unwrap().push((place, ask, reply));
    }
}

impl Asks {
    fn records(self: &Arc<Self>) -> TurnRecords {
        TurnRecords { asks: Some(self.clone()), ..TurnRecords::default() }
    }

    fn take(&self) -> Vec<(u32, GuestAsk, AskReply)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Waits until this many asks are open, and returns them.
    async fn wait_for(&self, count: usize) -> Vec<(u32, GuestAsk, AskReply)> {
        for _ in 0..2_000 {
            if self.0.lock().unwrap().len() >= count {
                return self.take();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{count} asks were not started");
    }
}

fn limits() -> InstanceLimits {
    InstanceLimits {
        ask: vec!["counter".into(), "misbehaving".into()],
        asks: 3,
        ask_bytes: 1_000,
        ask_timeout: Duration::from_millis(700),
        ..Default::default()
    }
}

async fn run(
    instance: &mut Instance,
    asks: &Arc<Asks>,
    context: MessageContext,
    method: &str,
    body: serde_json::Value,
) -> GuestTurnOutput {
    let context = MessageContext { records: Some(asks.records().into()), ..context };
    instance.message(context, method, Bytes::from(body.to_string())).await
}

fn body(of: &str, id: &str, method: &str, body: &str, count: u64) -> serde_json::Value {
    serde_json::json!({
        "of": of, "id": id, "method": method, "body": body, "count": count, "ms": 0
    })
}

#[tokio::test]
async fn a_guest_gets_each_kind_of_answer_in_order() {
    let program = prepare(&host(), misbehaving(), limits());
    let mut instance = started(&program, "e").await;
    let asks = Arc::new(Asks::default());
    let answering = async {
        let open = asks.wait_for(3).await;
        let places: Vec<_> = open.iter().map(|(place, ..)| *place).collect();
        assert_eq!(places, [0, 1, 2]);
        assert_eq!(open[0].1.timeout, Duration::from_millis(700), "the limit is the default");
        let text = |text: &str| text.to_owned();
        let answers = [
            AskAnswer::Result(Bytes::from_static(b"yes")),
            AskAnswer::Application { code: text("broke"), message: text("no money") },
            AskAnswer::NotRun { code: text("ask-cycle"), message: text("a -> a") },
        ];
        // The last one is answered first.
        for ((.., reply), answer) in open.into_iter().zip(answers).rev() {
            reply.answer(answer);
        }
    };
    let turn = run(&mut instance, &asks, command(), "ask", body("counter", "a", "m", "x", 3));
    let (turn, ()) = tokio::join!(turn, answering);
    assert_eq!(ok(&turn), r#"["ok yes","refused broke: no money","not-run ask-cycle: a -> a"]"#);
    let answering = async {
        for (_, _, reply) in asks.wait_for(1).await {
            reply.answer(AskAnswer::Unknown { message: "lost".into() });
        }
    };
    let turn = run(&mut instance, &asks, query(), "ask_in_query", body("counter", "a", "m", "", 1));
    let (turn, ()) = tokio::join!(turn, answering);
    assert_eq!(ok(&turn), r#"["unknown: lost"]"#);
}

#[tokio::test]
async fn each_limit_on_asks_has_its_own_code() {
    let program = prepare(&host(), misbehaving(), limits());
    let (long_id, long_method) = ("i".repeat(513), "m".repeat(129));
    for (of, id, method, bytes, count, expected) in [
        ("counter", "a", "add", 1, 3, Ok(3)),
        ("counter", "a", "add", 1, 4, Err("too-many-asks")),
        ("counter", "a", "add", 995, 1, Ok(1)),
        ("counter", "a", "add", 998, 1, Err("asks-too-large")),
        ("counter", "a", "add", 499, 2, Err("asks-too-large")),
        ("counter", "a", "add", 900_000, 1, Err("asks-too-large")),
        ("other", "a", "add", 1, 1, Err("ask-not-granted")),
        ("counter", "", "add", 1, 1, Err("invalid-host-call")),
        ("counter", &long_id, "add", 1, 1, Err("invalid-host-call")),
        ("counter", "a", "a\u{7}b", 1, 1, Err("invalid-host-call")),
        ("counter", "a", &long_method, 1, 1, Err("invalid-host-call")),
    ] {
        let asks = Arc::new(Asks::default());
        let mut instance = started(&program, "e").await;
        let request = body(of, id, method, &"x".repeat(bytes), count);
        let answering = async {
            if expected.is_ok() {
                for (_, _, reply) in asks.wait_for(count as usize).await {
                    reply.answer(AskAnswer::Result(Bytes::from_static(b"1")));
                }
            }
        };
        let turn = run(&mut instance, &asks, command(), "ask", request);
        let (turn, ()) = tokio::join!(turn, answering);
        match expected {
            Ok(count) => assert_eq!(ok(&turn).matches("ok 1").count(), count),
            Err(code) => assert_eq!(failed(&turn).code, code, "{count} of {bytes} to {of}/{id}"),
        }
    }
}

#[tokio::test]
async fn an_answer_beyond_the_limit_ends_the_turn() {
    let program = prepare(&host(), misbehaving(), limits());
    for (bytes, fits) in [(990, true), (999, false), (5_000_000, false)] {
        let asks = Arc::new(Asks::default());
        let mut instance = started(&program, "e").await;
        let answering = async {
            for (_, _, reply) in asks.wait_for(1).await {
                reply.answer(AskAnswer::Result(vec![b'x'; bytes].into()));
            }
        };
        let turn = run(&mut instance, &asks, command(), "ask", body("counter", "a", "m", "x", 1));
        let (turn, ()) = tokio::join!(turn, answering);
        match fits {
            true => assert!(ok(&turn).contains("ok xxx")),
            false => assert_eq!(failed(&turn).code, "asks-too-large"),
        }
    }
}

#[tokio::test]
async fn r22_waiting_for_an_answer_is_not_charged() {
    let limits = InstanceLimits { turn_time: Duration::from_millis(60), ..limits() };
    let program = prepare(&host(), misbehaving(), limits);
    let mut instance = started(&program, "e").await;
    let asks = Arc::new(Asks::default());
    let answering = async {
        let open = asks.wait_for(1).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        for (_, _, reply) in open {
            reply.answer(AskAnswer::Result(Bytes::from_static(b"late")));
        }
    };
    let turn = run(&mut instance, &asks, command(), "ask", body("counter", "a", "m", "x", 1));
    let (turn, ()) = tokio::join!(turn, answering);
    assert_eq!(ok(&turn), r#"["ok late"]"#);
    assert!(turn.guest_time < Duration::from_millis(60), "{turn:?}");
}

#[tokio::test]
async fn wait_any_returns_the_first_that_is_answered() {
    let program = prepare(&host(), misbehaving(), limits());
    let mut instance = started(&program, "e").await;
    let asks = Arc::new(Asks::default());
    let answering = async {
        let mut open = asks.wait_for(3).await;
        for at in [1, 1, 0] {
            let (_, ask, reply) = open.remove(at);
            reply.answer(AskAnswer::Result(Bytes::from(format!("{:?}", ask.id))));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let request = serde_json::json!(["a", "b", "c"]);
    let turn = run(&mut instance, &asks, command(), "ask_any", request);
    let (turn, ()) = tokio::join!(turn, answering);
    assert_eq!(ok(&turn), r#"["b","c","a"]"#);
    let turn = run(&mut instance, &asks, command(), "wait_for_none", serde_json::json!(null)).await;
    assert_eq!(failed(&turn).code, "invalid-host-call");
}

#[tokio::test]
async fn an_interrupted_turn_stops_waiting_at_once() {
    let program = prepare(&host(), misbehaving(), limits());
    let mut instance = started(&program, "e").await;
    let asks = Arc::new(Asks::default());
    let interrupt = instance.interrupt_handle();
    let stopping = async {
        let open = asks.wait_for(1).await;
        interrupt.interrupt();
        open
    };
    let turn = run(&mut instance, &asks, command(), "ask", body("counter", "a", "m", "x", 1));
    let (turn, open) = tokio::join!(turn, stopping);
    assert_eq!(failed(&turn).code, "interrupted");
    for (_, _, reply) in open {
        reply.answer(AskAnswer::Result(Bytes::new()));
    }
    // A worker that abandons a turn drops its asks.
    let mut instance = started(&program, "e").await;
    let dropping = async { drop(asks.wait_for(1).await) };
    let turn = run(&mut instance, &asks, command(), "ask", body("counter", "a", "m", "x", 1));
    let (turn, ()) = tokio::join!(turn, dropping);
    assert_eq!(failed(&turn).code, "interrupted");
    assert!(failed(&turn).is_retryable());
}

#[tokio::test]
async fn a_pending_ask_ends_with_its_turn() {
    let program = prepare(&host(), misbehaving(), limits());
    let mut instance = started(&program, "e").await;
    let asks = Arc::new(Asks::default());
    let keep = serde_json::json!("a");
    let turn = run(&mut instance, &asks, command(), "ask_and_keep", keep.clone()).await;
    assert_eq!(ok(&turn), "null");
    assert_eq!(asks.take().len(), 1);
    let turn = run(&mut instance, &asks, command(), "ask_and_keep", keep).await;
    assert_eq!(failed(&turn).code, "invalid-host-call");
    assert!(failed(&turn).message.contains("a pending ask of an earlier turn"), "{turn:?}");
}

#[tokio::test]
async fn a_start_hook_cannot_ask() {
    let program = prepare(&host(), misbehaving(), limits());
    let asks = Arc::new(Asks::default());
    let spec = InstanceSpec {
        identity: identity("ask-start"),
        state: Box::new(NoState),
        values: values(1),
        records: TurnRecords::default(),
    };
    let mut instance = program.instantiate(spec).await.unwrap();
    let turn = instance.start(StartReason::FirstMessage).await;
    assert_eq!(failed(&turn).code, "ask-outside-turn");
    assert!(asks.take().is_empty());
}
