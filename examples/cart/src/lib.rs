//! A shopping cart: an event-sourced entity that calls a shop's HTTP service.
//!
//! Prices come from the shop when an item is added. `checkout` only sets a timer; its firing sends the order. If the
//! shop cannot be reached, the firing fails and is attempted again, with the same idempotency key each time: a shop
//! that honours the key gets one order, whatever crashes in between.
//!
//! ```text
//! ostraca send cart/c1 open http://localhost:8080
//! ostraca send cart/c1 add '{"item":"tea","quantity":2}'      # 700
//! ostraca send cart/c1 checkout
//! ostraca send cart/c1 contents
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ostraca_sdk::http::{self, HttpError};
use ostraca_sdk::journal::EventSourced;
use ostraca_sdk::serde_json::json;
use ostraca_sdk::{ApplicationError, JsonSchema, context, entity, lifecycle, timers};
use serde::{Deserialize, Serialize};

/// How long a cart is kept after its order was confirmed.
const RECEIPT: Duration = Duration::from_secs(365 * 86_400);

/// The state of one cart, built from its events.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "ostraca_sdk::schemars")]
pub struct Cart {
    /// The URL of the shop.
    shop: Option<String>,
    /// What is in the cart, by item.
    lines: BTreeMap<String, Line>,
    status: Status,
}

/// One kind of item in the cart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "ostraca_sdk::schemars")]
pub struct Line {
    /// How many.
    pub quantity: u32,
    /// The price of one when it was added last.
    pub cents: u64,
}

/// How far the cart is.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "ostraca_sdk::schemars")]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Items can be added and removed.
    #[default]
    Open,
    /// The customer has ordered; the shop has not answered yet.
    Ordering,
    /// The shop has confirmed the order.
    Ordered {
        /// The shop's number of the order.
        order: String,
    },
}

/// What can happen to a cart.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// The cart is for this shop.
    Opened {
        /// Its URL.
        shop: String,
    },
    /// Items were added, at the price of one.
    Added {
        /// The kind of item.
        item: String,
        /// How many were added.
        quantity: u32,
        /// The price of one.
        cents: u64,
    },
    /// All items of a kind were removed.
    Removed {
        /// The kind of item.
        item: String,
    },
    /// The customer ordered.
    CheckedOut,
    /// The shop confirmed the order.
    Confirmed {
        /// The shop's number of the order.
        order: String,
    },
    /// The shop rejected the order: the cart is open again.
    Rejected {
        /// The status of the shop's response.
        status: u16,
    },
}

impl EventSourced for Cart {
    type Event = Event;

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Opened { shop } => self.shop = Some(shop.clone()),
            Event::Added { item, quantity, cents } => {
                let line = self.lines.entry(item.clone()).or_insert(Line { quantity: 0, cents: 0 });
                line.quantity += quantity;
                line.cents = *cents;
            }
            Event::Removed { item } => drop(self.lines.remove(item)),
            Event::CheckedOut => self.status = Status::Ordering,
            Event::Confirmed { order } => self.status = Status::Ordered { order: order.clone() },
            Event::Rejected { .. } => self.status = Status::Open,
        }
    }
}

/// Why a cart refuses a message.
#[derive(Debug, PartialEq, Eq, ApplicationError)]
pub enum Refused {
    /// `open` comes first, and only once.
    WrongShop,
    /// The quantity is 0 or too high.
    InvalidQuantity,
    /// The shop does not sell this item.
    UnknownItem,
    /// Nothing to order.
    Empty,
    /// The cart was ordered.
    CheckedOut,
    /// The shop did not answer, or not as expected.
    ShopFailed {
        /// What happened.
        why: String,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::WrongShop => f.write_str("open the cart once, with the shop's URL"),
            Refused::InvalidQuantity => write!(f, "the quantity is 1 to {MAX_QUANTITY}"),
            Refused::UnknownItem => f.write_str("the shop does not sell this item"),
            Refused::Empty => f.write_str("the cart is empty"),
            Refused::CheckedOut => f.write_str("the cart was ordered"),
            Refused::ShopFailed { why } => write!(f, "the shop failed: {why}"),
        }
    }
}

impl From<HttpError> for Refused {
    fn from(error: HttpError) -> Self {
        Refused::ShopFailed { why: error.to_string() }
    }
}

/// How many items of one kind fit into a cart.
const MAX_QUANTITY: u32 = 1_000;

/// What the shop answers to `GET /prices/ITEM`.
#[derive(Deserialize)]
struct Price {
    cents: u64,
}

/// What the shop answers to `POST /orders`.
#[derive(Deserialize)]
struct Order {
    order: String,
}

#[entity(state = "events")]
impl Cart {
    /// Opens the cart for a shop, whose URL the manifest must grant.
    ///
    /// # Errors
    /// `wrong-shop`, if it is open for another one.
    #[message]
    pub fn open(&mut self, shop: String) -> Result<(), Refused> {
        match &self.shop {
            None => drop(self.record(&Event::Opened { shop })),
            Some(known) if *known == shop => {}
            Some(_) => return Err(Refused::WrongShop),
        }
        Ok(())
    }

    /// Adds items at the shop's current price. Returns the total in cents.
    ///
    /// # Errors
    /// `wrong-shop`, `invalid-quantity`, `unknown-item`, `checked-out`, `shop-failed`.
    #[message]
    pub fn add(&mut self, item: String, quantity: u32) -> Result<u64, Refused> {
        self.check_open()?;
        let shop = self.shop.clone().ok_or(Refused::WrongShop)?;
        let before = self.lines.get(&item).map_or(0, |line| line.quantity);
        if quantity == 0 || before.saturating_add(quantity) > MAX_QUANTITY {
            return Err(Refused::InvalidQuantity);
        }
        if item.is_empty() || !item.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(Refused::UnknownItem);
        }
        let response = http::get(format!("{shop}/prices/{item}"))?;
        let cents = match response.status() {
            200 => response.json::<Price>()?.cents,
            404 => return Err(Refused::UnknownItem),
            status => return Err(Refused::ShopFailed { why: format!("status {status}") }),
        };
        self.record(&Event::Added { item, quantity, cents });
        Ok(self.total())
    }

    /// Removes all items of a kind. Returns the total in cents.
    ///
    /// # Errors
    /// `checked-out`.
    #[message]
    pub fn remove(&mut self, item: String) -> Result<u64, Refused> {
        self.check_open()?;
        if self.lines.contains_key(&item) {
            self.record(&Event::Removed { item });
        }
        Ok(self.total())
    }

    /// Orders what is in the cart. The order is sent right after this turn.
    ///
    /// # Errors
    /// `empty`, `checked-out`.
    #[message]
    pub fn checkout(&mut self) -> Result<(), Refused> {
        self.check_open()?;
        if self.lines.is_empty() {
            return Err(Refused::Empty);
        }
        timers::after("order", Duration::ZERO).set();
        self.record(&Event::CheckedOut);
        Ok(())
    }

    /// Returns what is in the cart, and how far it is.
    #[message]
    pub fn contents(&self) -> Cart {
        self.clone()
    }

    /// Sends the order. If it fails, the host attempts this firing again later, with the same idempotency key.
    ///
    /// # Errors
    /// `shop-failed`.
    #[timer]
    fn order(&mut self) -> Result<(), Refused> {
        let shop = self.shop.clone().ok_or(Refused::WrongShop)?;
        let order = json!({ "cart": context::identity().id, "lines": self.lines });
        let response = http::Request::post(format!("{shop}/orders")).json(&order).send()?;
        match response.status() {
            200..=299 => {
                self.record(&Event::Confirmed { order: response.json::<Order>()?.order });
                lifecycle::expire_after(RECEIPT);
            }
            status @ 400..=499 => drop(self.record(&Event::Rejected { status })),
            status => return Err(Refused::ShopFailed { why: format!("status {status}") }),
        }
        Ok(())
    }
}

impl Cart {
    fn check_open(&self) -> Result<(), Refused> {
        if self.status == Status::Open { Ok(()) } else { Err(Refused::CheckedOut) }
    }

    fn total(&self) -> u64 {
        let cents = self.lines.values().map(|line| line.cents.saturating_mul(line.quantity.into()));
        cents.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use ostraca_sdk::http::{HttpError, Request, Response};
    use ostraca_sdk::lifecycle;
    use ostraca_sdk::serde_json::{self, Value, json};
    use ostraca_sdk::testing::{self, MessageError, call};

    use super::Cart;

    /// The shop sells tea, and answers orders with this status.
    fn shop(status: u16) -> Rc<Cell<u16>> {
        let status = Rc::new(Cell::new(status));
        let answers = status.clone();
        testing::answer_http(move |request: &Request| match request.url() {
            "http://shop/prices/tea" => Ok(Response::with_json(200, &json!({ "cents": 350 }))),
            "http://shop/orders" if answers.get() == 0 => Err(HttpError::Unknown {
                code: "connection-timeout".into(),
                message: "slow".into(),
            }),
            "http://shop/orders" => {
                Ok(Response::with_json(answers.get(), &json!({ "order": "o1" })))
            }
            _ => Ok(Response::new(404, "")),
        });
        testing::set_identity("cart", "c1");
        call::<Cart>("open", "http://shop").unwrap();
        status
    }

    fn add(item: &str, quantity: u32) -> Result<Value, MessageError> {
        call::<Cart>("add", json!({ "item": item, "quantity": quantity }))
    }

    fn status() -> Value {
        call::<Cart>("contents", ()).unwrap()["status"].clone()
    }

    fn is_refused(outcome: Result<Value, MessageError>, expected: &str) -> bool {
        matches!(outcome, Err(MessageError::Application { code, .. }) if code == expected)
    }

    #[test]
    fn the_shop_sets_the_prices() {
        shop(200);
        assert_eq!(add("tea", 2), Ok(json!(700)));
        assert_eq!(add("tea", 1), Ok(json!(1050)));
        assert!(is_refused(add("gold", 1), "unknown-item"));
        assert!(is_refused(add("../orders", 1), "unknown-item"));
        assert!(is_refused(add("tea", 998), "invalid-quantity"));
        assert_eq!(call::<Cart>("remove", "tea"), Ok(json!(0)));
    }

    #[test]
    fn the_cart_is_built_from_its_events() {
        shop(200);
        for _ in 0..150 {
            add("tea", 1).unwrap();
        }
        testing::crash_instance::<Cart>();
        let contents = call::<Cart>("contents", ()).unwrap();
        assert_eq!(contents["lines"], json!({ "tea": { "quantity": 150, "cents": 350 } }));
    }

    #[test]
    fn an_order_leaves_after_its_turn_and_is_kept_longer() {
        shop(201);
        add("tea", 2).unwrap();
        testing::take_http_requests();
        call::<Cart>("checkout", ()).unwrap();
        assert_eq!(status(), "ordering");
        assert!(is_refused(add("tea", 1), "checked-out"));
        assert!(testing::take_http_requests().is_empty());
        assert_eq!(testing::fire_timers::<Cart>(), 1);
        let [order] = &testing::take_http_requests()[..] else { panic!("one order") };
        let order: Value = serde_json::from_slice(order.body_bytes()).unwrap();
        let lines = json!({ "tea": { "quantity": 2, "cents": 350 } });
        assert_eq!(order, json!({ "cart": "c1", "lines": lines }));
        assert_eq!(status(), json!({ "ordered": { "order": "o1" } }));
        assert!(lifecycle::expires_at().is_some());
    }

    #[test]
    fn an_order_that_fails_is_attempted_again() {
        let shop = shop(0);
        add("tea", 2).unwrap();
        call::<Cart>("checkout", ()).unwrap();
        for failing in [0, 503] {
            shop.set(failing);
            let fired = testing::fire_next_timer::<Cart>().expect("the order");
            assert!(matches!(fired, Err((code, _)) if code == "shop-failed"));
            assert_eq!(status(), "ordering");
        }
        shop.set(200);
        assert_eq!(testing::fire_next_timer::<Cart>(), Some(Ok(())));
        assert_eq!(status(), json!({ "ordered": { "order": "o1" } }));
        testing::advance_time(Duration::from_secs(3_600));
        assert_eq!(testing::fire_next_timer::<Cart>(), None);
    }

    #[test]
    fn a_rejected_order_opens_the_cart_again() {
        shop(422);
        assert!(is_refused(call::<Cart>("checkout", ()), "empty"));
        add("tea", 2).unwrap();
        call::<Cart>("checkout", ()).unwrap();
        testing::fire_timers::<Cart>();
        assert_eq!(status(), "open");
        assert_eq!(call::<Cart>("remove", "tea"), Ok(json!(0)));
    }

    #[test]
    fn a_cart_has_one_shop() {
        shop(200);
        call::<Cart>("open", "http://shop").unwrap();
        assert!(is_refused(call::<Cart>("open", "http://other"), "wrong-shop"));
    }
}
