use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::places::Place;
use super::*;
use crate::Limits;

const MIB: u64 = 1 << 20;

fn limits() -> Limits {
    Limits {
        connection_bytes: 2 * MIB,
        principal_bytes: 4 * MIB,
        node_bytes: 8 * MIB,
        max_connections: 20,
        principal_connections: 17,
        reserved_connections: 4,
        max_uploads: 2,
        principal_uploads: 1,
        principal_streams: 3,
        ..Limits::default()
    }
}

fn account(budgets: &Arc<Budgets>, name: &str) -> (Place, Arc<Account>) {
    let (place, account, _) = budgets.connect(name).expect("a place");
    (place, account)
}

fn setting(full: Option<Full>) -> Option<String> {
    full.map(|full| full.problem("x").details["setting"].clone())
}

#[test]
fn a_charge_counts_on_every_level_until_dropped() {
    let budgets = Budgets::new(&limits());
    let (_one, first) = account(&budgets, "client/a");
    let (_two, second) = account(&budgets, "client/a");
    let (_three, other) = account(&budgets, "client/b");
    let charge = first.charge(2 * MIB);
    assert_eq!(setting(first.full()).as_deref(), Some("connection_bytes"));
    assert_eq!(setting(second.full()), None);
    let another = second.charge(2 * MIB);
    assert_eq!(setting(budgets.passed_on("client/a").full()).as_deref(), Some("principal_bytes"));
    assert_eq!(setting(other.full()), None);
    let passed_on = budgets.passed_on("client/c").charge(4 * MIB);
    assert_eq!(setting(other.full()).as_deref(), Some("node_bytes"));
    drop((charge, another, passed_on));
    assert_eq!((budgets.held(), setting(other.full())), (0, None));
}

#[test]
fn messages_alone_do_not_clog() {
    let budgets = Budgets::new(&limits());
    let (_place, account) = account(&budgets, "client/a");
    let message = account.charge(3 * MIB);
    assert!(account.full().is_some());
    assert_eq!(message.clogged(), None);
    message.made(2 * MIB);
    assert_eq!(setting(message.clogged()).as_deref(), Some("connection_bytes"));
}

#[test]
fn a_reply_without_room_is_given_up_and_not_charged() {
    let budgets = Budgets::new(&limits());
    let (_place, account) = account(&budgets, "client/a");
    let (first, second, third) = (account.charge(0), account.charge(0), account.charge(0));
    assert_eq!(first.answer(MIB), Ok(()));
    // The one that passes the limit is still taken: a reply of any size gets through alone.
    assert_eq!(second.answer(3 * MIB), Ok(()));
    let full = third.answer(MIB).expect_err("full");
    assert!(full.to_string().contains("`connection_bytes` (2097152)"), "{full}");
    assert_eq!(budgets.held(), 4 * MIB + 3 * OVERHEAD);
    // A short one says why, and is paid for.
    assert_eq!(third.answer(OVERHEAD), Ok(()));
    drop((first, second));
    assert_eq!(third.answer(MIB), Ok(()));
    drop(third);
    assert_eq!(budgets.held(), 0);
}

#[test]
fn a_reply_charged_at_its_making_passes() {
    let budgets = Budgets::new(&limits());
    let (_place, account) = account(&budgets, "client/a");
    let (first, second) = (account.charge(0), account.charge(0));
    second.made(MIB);
    first.made(3 * MIB);
    assert_eq!(second.answer(MIB), Ok(()));
    assert_eq!(second.answer(MIB / 2), Ok(()));
    drop((first, second));
    assert_eq!(budgets.held(), 0);
}

#[test]
fn a_link_has_room_for_one_more_principal() {
    let budgets = Budgets::new(&Limits { principal_bytes: 100 * MIB, ..limits() });
    let link = LinkBudget::new(6 * MIB);
    let of = |name: &str| budgets.on_link(name, &link);
    let until_clogged = |account: &Arc<Account>| {
        let mut charges = Vec::new();
        while account.charge(0).clogged().is_none() {
            let charge = account.charge(0);
            charge.made(MIB);
            charges.push(charge);
        }
        charges
    };
    let (a, b, c) = (of("client/a"), of("client/b"), of("client/c"));
    // Half of it, a half of the rest, and so on; each has one always.
    let (first, second) = (until_clogged(&a), until_clogged(&b));
    assert_eq!((first.len(), second.len()), (3, 2));
    assert_eq!(setting(a.charge(0).clogged()).as_deref(), Some("peer_message_bytes"));
    let third = until_clogged(&c);
    assert_eq!((third.len(), a.full(), c.full()), (1, None, None));
    let fourth = of("client/d").charge(0);
    assert_eq!((fourth.clogged(), fourth.answer(MIB)), (None, Ok(())));
    // What one gives back the others may have.
    drop((first, fourth));
    assert_eq!(second[0].clogged(), None);
    drop((second, third));
    assert_eq!(budgets.held(), 0);
    assert_eq!(until_clogged(&a).len(), 3);
}

#[test]
fn a_reply_beyond_its_share_of_a_link_is_given_up() {
    let budgets = Budgets::new(&limits());
    let link = LinkBudget::new(4 * MIB);
    let account = budgets.on_link("client/a", &link);
    let charges: Vec<_> = (0..4).map(|_| account.charge(0)).collect();
    let answered: Vec<_> = charges.iter().map(|charge| charge.answer(MIB).is_ok()).collect();
    assert_eq!(answered, [true, true, false, false]);
    drop(charges);
    assert_eq!(budgets.held(), 0);
}

#[tokio::test]
async fn whoever_waits_for_room_goes_on_when_there_is() {
    let budgets = Budgets::new(&limits());
    let (_one, first) = account(&budgets, "client/a");
    let (_two, second) = account(&budgets, "client/a");
    let charges = [first.charge(2 * MIB), second.charge(2 * MIB)];
    let waiting = tokio::spawn(async move { first.room().await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    drop(charges);
    timeout(Duration::from_secs(20), waiting).await.expect("in time").expect("it waited");
}

#[test]
fn what_a_principal_holds_outlives_its_connections() {
    let budgets = Budgets::new(&limits());
    let (place, first) = account(&budgets, "client/a");
    let charge = first.charge(4 * MIB);
    drop((place, first));
    let (_place, again) = account(&budgets, "client/a");
    assert_eq!(setting(again.full()).as_deref(), Some("principal_bytes"));
    drop(charge);
    assert_eq!(again.full(), None);
}

#[test]
fn the_last_places_are_for_principals_with_none() {
    let budgets = Budgets::new(&limits());
    let mut places: Vec<_> = (0..16).map(|_| account(&budgets, "client/a")).collect();
    let refused = |name: &str| budgets.connect(name).err().map(|refused| refused.setting);
    assert_eq!(refused("client/a"), Some("reserved_connections"));
    for name in ["client/op", "client/b", "client/c", "client/d"] {
        places.push(account(&budgets, name));
        assert!(refused(name).is_some(), "{name} has one");
    }
    assert_eq!(refused("client/e"), Some("max_connections"));
    places.clear();
    let many: Vec<_> = (0..16).map(|_| account(&budgets, "client/e")).collect();
    assert_eq!(many.len(), 16);
}

#[test]
fn a_principal_has_its_share_and_no_more() {
    let few = Limits { max_connections: 100, principal_connections: 2, ..limits() };
    let budgets = Budgets::new(&few);
    let (_one, first) = account(&budgets, "client/a");
    let _two = account(&budgets, "client/a");
    let refused = budgets.connect("client/a").err().map(|refused| refused.setting);
    assert_eq!(refused, Some("principal_connections"));
    let (_three, other) = account(&budgets, "client/b");

    let streams: Vec<_> = (0..3).map(|_| budgets.open(&first).expect("a place")).collect();
    assert_eq!(budgets.open(&first).map(drop).map_err(|r| r.setting), Err("principal_streams"));
    assert!(budgets.open(&other).is_ok());
    drop(streams);
    assert!(budgets.open(&first).is_ok());

    let upload = budgets.upload(&first).expect("a place");
    assert_eq!(budgets.upload(&first).map(drop).map_err(|r| r.setting), Err("principal_uploads"));
    let second = budgets.upload(&other).expect("a place");
    let third = budgets.passed_on("client/c");
    assert_eq!(budgets.upload(&third).map(drop).map_err(|r| r.setting), Err("max_uploads"));
    drop((upload, second));
    assert!(budgets.upload(&third).is_ok());
}

#[test]
fn send_windows_together_stay_within_the_budgets() {
    let limits = Limits::default();
    let all: u64 = (1..=limits.principal_connections).map(|n| send_window(&limits, n, n)).sum();
    assert!(all < 2 * limits.principal_bytes, "{all}");
    let all: u64 = (1..=limits.max_connections).map(|n| send_window(&limits, 1, n)).sum();
    assert!(all < 2 * limits.node_bytes, "{all}");
    assert_eq!(send_window(&limits, 1, 1), limits.send_window);
}
