use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::permits::Permit;
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

fn account(budgets: &Arc<Budgets>, name: &str) -> (Permit, Arc<Account>) {
    let (place, account, _) = budgets.admit_connection(name).expect("a permit");
    (place, account)
}

fn setting(full: Option<BudgetExceeded>) -> Option<String> {
    full.map(|full| full.problem("x").details["setting"].clone())
}

#[test]
fn a_charge_counts_on_every_level_until_dropped() {
    let budgets = Budgets::new(&limits());
    let (_one, first) = account(&budgets, "client/a");
    let (_two, second) = account(&budgets, "client/a");
    let (_three, other) = account(&budgets, "client/b");
    let charge = first.charge(2 * MIB);
    assert_eq!(setting(first.exceeded_budget()).as_deref(), Some("network.connection-bytes"));
    assert_eq!(setting(second.exceeded_budget()), None);
    let another = second.charge(2 * MIB);
    assert_eq!(
        setting(budgets.forwarded_account("client/a").exceeded_budget()).as_deref(),
        Some("network.principal-bytes")
    );
    assert_eq!(setting(other.exceeded_budget()), None);
    let passed_on = budgets.forwarded_account("client/c").charge(4 * MIB);
    assert_eq!(setting(other.exceeded_budget()).as_deref(), Some("network.node-bytes"));
    drop((charge, another, passed_on));
    assert_eq!((budgets.charged_bytes(), setting(other.exceeded_budget())), (0, None));
}

#[test]
fn messages_alone_do_not_exceed_the_reply_budget() {
    let budgets = Budgets::new(&limits());
    let (_place, account) = account(&budgets, "client/a");
    let message = account.charge(3 * MIB);
    assert!(account.exceeded_budget().is_some());
    assert_eq!(message.exceeded_reply_budget(), None);
    message.set_reply_size(2 * MIB);
    assert_eq!(
        setting(message.exceeded_reply_budget()).as_deref(),
        Some("network.connection-bytes")
    );
}

#[test]
fn a_reply_without_room_is_dropped_and_not_charged() {
    let budgets = Budgets::new(&limits());
    let (_place, account) = account(&budgets, "client/a");
    let (first, second, third) = (account.charge(0), account.charge(0), account.charge(0));
    assert_eq!(first.try_charge_reply(MIB), Ok(()));
    // The reply that crosses the limit is still accepted, so that a single reply may have any size.
    assert_eq!(second.try_charge_reply(3 * MIB), Ok(()));
    let full = third.try_charge_reply(MIB).expect_err("full");
    assert!(full.to_string().contains("`network.connection-bytes` (2097152 bytes)"), "{full}");
    assert_eq!(budgets.charged_bytes(), 4 * MIB + 3 * OVERHEAD);
    // A short reply, which carries the reason, is accepted: the message's charge covers it.
    assert_eq!(third.try_charge_reply(OVERHEAD), Ok(()));
    drop((first, second));
    assert_eq!(third.try_charge_reply(MIB), Ok(()));
    drop(third);
    assert_eq!(budgets.charged_bytes(), 0);
}

#[test]
fn a_reply_charged_when_made_is_never_dropped() {
    let budgets = Budgets::new(&limits());
    let (_place, account) = account(&budgets, "client/a");
    let (first, second) = (account.charge(0), account.charge(0));
    second.set_reply_size(MIB);
    first.set_reply_size(3 * MIB);
    assert_eq!(second.try_charge_reply(MIB), Ok(()));
    assert_eq!(second.try_charge_reply(MIB / 2), Ok(()));
    drop((first, second));
    assert_eq!(budgets.charged_bytes(), 0);
}

#[test]
fn a_link_always_has_room_for_one_more_principal() {
    let budgets = Budgets::new(&Limits { principal_bytes: 100 * MIB, ..limits() });
    let link = ReplyBudget::new(6 * MIB);
    let of = |name: &str| budgets.on_link(name, &link);
    let until_clogged = |account: &Arc<Account>| {
        let mut charges = Vec::new();
        while account.charge(0).exceeded_reply_budget().is_none() {
            let charge = account.charge(0);
            charge.set_reply_size(MIB);
            charges.push(charge);
        }
        charges
    };
    let (a, b, c) = (of("client/a"), of("client/b"), of("client/c"));
    // Each principal gets about half of what is left, and always at least one reply.
    let (first, second) = (until_clogged(&a), until_clogged(&b));
    assert_eq!((first.len(), second.len()), (3, 2));
    assert_eq!(
        setting(a.charge(0).exceeded_reply_budget()).as_deref(),
        Some("peers.in-flight-message-bytes")
    );
    let third = until_clogged(&c);
    assert_eq!((third.len(), a.exceeded_budget(), c.exceeded_budget()), (1, None, None));
    let fourth = of("client/d").charge(0);
    assert_eq!((fourth.exceeded_reply_budget(), fourth.try_charge_reply(MIB)), (None, Ok(())));
    // What one principal releases is available to the others.
    drop((first, fourth));
    assert_eq!(second[0].exceeded_reply_budget(), None);
    drop((second, third));
    assert_eq!(budgets.charged_bytes(), 0);
    assert_eq!(until_clogged(&a).len(), 3);
}

#[test]
fn a_reply_beyond_its_share_of_a_link_is_dropped() {
    let budgets = Budgets::new(&limits());
    let link = ReplyBudget::new(4 * MIB);
    let account = budgets.on_link("client/a", &link);
    let charges: Vec<_> = (0..4).map(|_| account.charge(0)).collect();
    let answered: Vec<_> =
        charges.iter().map(|charge| charge.try_charge_reply(MIB).is_ok()).collect();
    assert_eq!(answered, [true, true, false, false]);
    drop(charges);
    assert_eq!(budgets.charged_bytes(), 0);
}

#[tokio::test]
async fn a_wait_for_room_ends_when_charges_are_dropped() {
    let budgets = Budgets::new(&limits());
    let (_one, first) = account(&budgets, "client/a");
    let (_two, second) = account(&budgets, "client/a");
    let charges = [first.charge(2 * MIB), second.charge(2 * MIB)];
    let waiting = tokio::spawn(async move { first.wait_for_room().await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    drop(charges);
    timeout(Duration::from_secs(20), waiting).await.expect("in time").expect("no panic");
}

#[test]
fn charges_of_a_principal_outlive_its_connections() {
    let budgets = Budgets::new(&limits());
    let (place, first) = account(&budgets, "client/a");
    let charge = first.charge(4 * MIB);
    drop((place, first));
    let (_place, again) = account(&budgets, "client/a");
    assert_eq!(setting(again.exceeded_budget()).as_deref(), Some("network.principal-bytes"));
    drop(charge);
    assert_eq!(again.exceeded_budget(), None);
}

#[test]
fn the_last_connections_are_for_principals_without_one() {
    let budgets = Budgets::new(&limits());
    let mut places: Vec<_> = (0..16).map(|_| account(&budgets, "client/a")).collect();
    let refused = |name: &str| budgets.admit_connection(name).err().map(|refused| refused.setting);
    assert_eq!(refused("client/a"), Some("network.reserved-connections"));
    for name in ["client/op", "client/b", "client/c", "client/d"] {
        places.push(account(&budgets, name));
        assert!(refused(name).is_some(), "{name} already has a connection");
    }
    assert_eq!(refused("client/e"), Some("network.max-connections"));
    places.clear();
    let many: Vec<_> = (0..16).map(|_| account(&budgets, "client/e")).collect();
    assert_eq!(many.len(), 16);
}

#[test]
fn a_principal_gets_no_more_than_its_limits() {
    let few = Limits { max_connections: 100, principal_connections: 2, ..limits() };
    let budgets = Budgets::new(&few);
    let (_one, first) = account(&budgets, "client/a");
    let _two = account(&budgets, "client/a");
    let refused = budgets.admit_connection("client/a").err().map(|refused| refused.setting);
    assert_eq!(refused, Some("network.principal-connections"));
    let (_three, other) = account(&budgets, "client/b");

    let streams: Vec<_> = (0..3).map(|_| budgets.admit_stream(&first).expect("a permit")).collect();
    assert_eq!(
        budgets.admit_stream(&first).map(drop).map_err(|r| r.setting),
        Err("network.principal-streams")
    );
    assert!(budgets.admit_stream(&other).is_ok());
    drop(streams);
    assert!(budgets.admit_stream(&first).is_ok());

    let upload = budgets.admit_upload(&first).expect("a permit");
    assert_eq!(
        budgets.admit_upload(&first).map(drop).map_err(|r| r.setting),
        Err("network.principal-uploads")
    );
    let second = budgets.admit_upload(&other).expect("a permit");
    let third = budgets.forwarded_account("client/c");
    assert_eq!(
        budgets.admit_upload(&third).map(drop).map_err(|r| r.setting),
        Err("network.max-uploads")
    );
    drop((upload, second));
    assert!(budgets.admit_upload(&third).is_ok());
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

#[test]
fn pages_use_at_most_half_of_each_budget() {
    let budgets = Budgets::new(&limits());
    let (_one, first) = account(&budgets, "client/a");
    let (_two, second) = account(&budgets, "client/a");
    let (_three, third) = account(&budgets, "client/a");
    let page = |account: &Arc<Account>| {
        account.charge_page(MIB / 2).map_err(|full| setting(Some(full)).expect("a setting"))
    };
    let mut held = vec![page(&first).expect("half of a half")];
    assert_eq!(page(&first).err().as_deref(), Some("network.connection-bytes"), "with overhead");
    held.extend([page(&second).expect("room"), page(&third).expect("room")]);
    let (_four, fourth) = account(&budgets, "client/a");
    assert_eq!(page(&fourth).err().as_deref(), Some("network.principal-bytes"));
    assert!(fourth.exceeded_budget().is_none(), "messages still have room");
    let message = fourth.charge(10);
    assert!(message.exceeded_reply_budget().is_none() && message.try_charge_reply(MIB).is_ok());
    let (_five, other) = account(&budgets, "client/b");
    held.push(page(&other).expect("another principal has room"));
    let feeds = other.of_node("feeds");
    let of_node = feeds.charge_page(3 * MIB).map_err(|full| setting(Some(full)));
    assert_eq!(of_node.err().flatten().as_deref(), Some("network.node-bytes"));
    drop((held, message));
    assert_eq!(budgets.charged_bytes(), 0);
}

#[test]
fn a_page_is_admitted_where_nothing_else_is_charged() {
    let budgets = Budgets::new(&Limits { connection_bytes: 100, ..limits() });
    let (_place, account) = account(&budgets, "client/a");
    let page = account.charge_page(MIB).expect("the only one");
    assert!(account.charge_page(1).is_err());
    drop(page);
    assert!(account.charge_page(MIB).is_ok());
}
