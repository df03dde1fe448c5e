//! The cart as it is deployed: its component on the real host, its manifest, and nodes that die.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca_testkit::{HttpReply, Kit};
use serde_json::{Value, json};

const SHOP: &str = "https://shop.example.com";

/// The shop's orders, by idempotency key.
type Orders = Arc<Mutex<BTreeMap<String, Value>>>;

/// A shop that honours idempotency keys, and a cart with two items.
fn shop_and_cart() -> (Kit, Orders) {
    let (mut kit, orders) = (Kit::new(), Orders::default());
    kit.deploy(env!("CARGO_MANIFEST_DIR")).expect("a component");
    let received = orders.clone();
    kit.answer_http(move |call| match (&*call.method, &*call.url) {
        ("GET", "https://shop.example.com:443/prices/tea") => {
            HttpReply::Json(200, json!({ "cents": 350 }))
        }
        ("POST", "https://shop.example.com:443/orders") => {
            received.lock().unwrap().entry(call.key.clone()).or_insert_with(|| call.json());
            HttpReply::Json(201, json!({ "order": call.key }))
        }
        _ => HttpReply::Json(404, json!(null)),
    });
    kit.command("cart/c1", "open", json!(SHOP)).unwrap();
    kit.command("cart/c1", "add", json!({ "item": "tea", "quantity": 2 })).unwrap();
    (kit, orders)
}

fn is_ordered(kit: &mut Kit) -> bool {
    kit.query("cart/c1", "contents", json!(null)).unwrap()["status"]["ordered"].is_object()
}

#[test]
fn a_node_that_dies_while_it_orders_orders_once() {
    let (mut kit, orders) = shop_and_cart();
    kit.take_http_calls();
    // `checkout` is stored. Its timer sends the order, and the node dies before it can store the shop's answer.
    kit.lose_commit_after("cart/c1", 1);
    kit.command("cart/c1", "checkout", json!(null)).unwrap();
    kit.advance(Duration::from_secs(60));
    assert!(is_ordered(&mut kit));
    assert_eq!(kit.take_http_calls().len(), 2, "the shop received the order twice");
    assert_eq!(orders.lock().unwrap().len(), 1);
}

#[test]
fn a_cart_is_the_same_on_every_node() {
    let (mut kit, orders) = shop_and_cart();
    let before = kit.query("cart/c1", "contents", json!(null));
    kit.crash("cart/c1");
    assert_eq!(kit.query("cart/c1", "contents", json!(null)), before);
    kit.trap_next_turn("cart/c1");
    kit.command("cart/c1", "checkout", json!(null)).unwrap_err();
    kit.advance(Duration::from_secs(60));
    assert!(orders.lock().unwrap().is_empty() && !is_ordered(&mut kit));
}

#[test]
fn a_cart_that_nobody_touches_is_deleted() {
    let (mut kit, _) = shop_and_cart();
    kit.advance(Duration::from_secs(15 * 86_400));
    let cart = kit.query("cart/c1", "contents", json!(null)).unwrap();
    assert_eq!(cart, json!({ "shop": null, "lines": {}, "status": "open" }));
}
