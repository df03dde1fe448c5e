//! Tells in unit tests: the test sees what was sent.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use ostraca_sdk::messaging::{self, Entity};
use ostraca_sdk::serde_json::json;
use ostraca_sdk::testing::{self, call};
use ostraca_sdk::{Error, entity};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Account {
    cents: u64,
}

#[entity]
impl Account {
    /// Sends the payment first, and then refuses if there is not enough money.
    #[message]
    pub(crate) fn pay(&mut self, to: String, cents: u64) -> Result<(), Error> {
        Entity::new("account", to).tell("deposit", &json!({ "cents": cents }));
        match self.cents.checked_sub(cents) {
            Some(left) => {
                self.cents = left;
                Ok(())
            }
            None => Err(Error::new("insufficient", "not enough")),
        }
    }

    /// Adds money.
    #[message]
    pub(crate) fn deposit(&mut self, cents: u64) {
        self.cents += cents;
    }

    /// Subscribes to a channel, or ends the subscription.
    #[message]
    pub(crate) fn follow(&mut self, room: String, joins: bool) {
        let room = Entity::new("room", room);
        match joins {
            true => room.subscribe("posts", "deposit"),
            false => room.unsubscribe("posts"),
        }
    }

    /// A query that sends.
    #[message]
    pub(crate) fn sly(&self) {
        Entity::new("account", "x").tell("deposit", &1);
    }

    /// Sends to an entity without an id.
    #[message]
    pub(crate) fn lost(&mut self) {
        Entity::new("account", "").tell("deposit", &1);
    }
}

#[test]
fn r27_a_subscription_is_a_tell_of_its_turn() {
    for (joins, method, body) in
        [(true, "\u{1}subscribe", "posts\ndeposit"), (false, "\u{1}unsubscribe", "posts\n")]
    {
        call::<Account>("follow", json!({ "room": "r", "joins": joins })).unwrap();
        let tells = testing::take_tells();
        assert_eq!(tells[0].to, Entity::new("room", "r"));
        assert_eq!((&*tells[0].method, &tells[0].body[..]), (method, body.as_bytes()));
    }
}

#[test]
fn a_test_sees_the_tells_of_turns_that_succeeded() {
    call::<Account>("deposit", 5).unwrap();
    call::<Account>("pay", json!({ "to": "a", "cents": 3 })).unwrap();
    call::<Account>("pay", json!({ "to": "b", "cents": 3 })).unwrap_err();
    call::<Account>("pay", json!({ "to": "c", "cents": 2 })).unwrap();
    let tells = testing::take_tells();
    let seen: Vec<_> = tells.iter().map(|tell| (tell.to.id(), tell.arguments())).collect();
    assert_eq!(seen, [("a", json!({ "cents": 3 })), ("c", json!({ "cents": 2 }))]);
    assert_eq!(tells[0].to, Entity::new("account", "a"));
    assert_eq!((&*tells[0].method, &*tells[0].content_type), ("deposit", "application/json"));
    assert!(testing::take_tells().is_empty());
}

#[test]
#[should_panic(expected = "write-in-query")]
fn a_query_cannot_send() {
    let _ = call::<Account>("sly", ());
}

#[test]
#[should_panic(expected = "a tell's id must be 1 to 512 bytes long, not 0")]
fn an_id_must_not_be_empty() {
    let _ = call::<Account>("lost", ());
}

/// Reminds a customer, unless the reminder is cancelled.
#[derive(Default, Serialize, Deserialize)]
struct Order;

#[entity]
impl Order {
    /// Sends a reminder later, and fails if asked to.
    #[message]
    pub(crate) fn remind(&mut self, name: String, seconds: u64, fail: bool) -> Result<(), Error> {
        let mail = Entity::new("mail", "alice");
        mail.tell_after(&name, Duration::from_secs(seconds), "send", &name);
        if fail { Err(Error::new("no", "as asked")) } else { Ok(()) }
    }

    /// Cancels a reminder.
    #[message]
    pub(crate) fn cancel(&mut self, name: String) -> bool {
        messaging::cancel(&name)
    }

    /// Cancels a reminder in a query, which must not write.
    #[message]
    pub(crate) fn sly(&self) -> bool {
        messaging::cancel("a")
    }
}

#[test]
fn a_delayed_tell_leaves_in_time_unless_cancelled_or_refused() {
    let remind = |name: &str, seconds: u64, fail: bool| {
        let arguments = json!({ "name": name, "seconds": seconds, "fail": fail });
        call::<Order>("remind", arguments)
    };
    for (name, seconds) in [("late", 30), ("early", 10), ("gone", 20), ("late", 40)] {
        remind(name, seconds, false).unwrap();
    }
    assert!(remind("refused", 1, true).is_err());
    assert_eq!(call::<Order>("cancel", "gone").unwrap(), json!(true));
    assert_eq!(call::<Order>("cancel", "gone").unwrap(), json!(false));
    let names: Vec<_> = messaging::delayed().into_iter().map(|tell| tell.name).collect();
    assert_eq!(names, ["early", "late"]);
    let mut sent = Vec::new();
    for _ in 0..5 {
        testing::advance_time(Duration::from_secs(9));
        let tells = testing::take_tells();
        sent.extend(tells.iter().map(|tell| tell.arguments().as_str().unwrap().to_owned()));
        assert!(messaging::delayed().len() + sent.len() == 2, "{sent:?}");
    }
    assert_eq!(sent, ["early", "late"]);
}

#[test]
#[should_panic(expected = "write-in-query")]
fn a_query_cannot_cancel_a_delayed_tell() {
    let _ = call::<Order>("sly", ());
}
