//! Published interfaces do not change: a component built for an earlier release runs unchanged.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::{BARE, ask, build, host, ok, prepare, refused, send, started, values};
use ostraca_wasm::{InstanceLimits, MessageKind, StopReason, TurnRecords};
use wit_component::WitPrinter;
use wit_parser::{Resolve, WorldKey};

const PUBLISHED: &str = include_str!("fixtures/ostraca-entity-0.1.0.wit");
const CURRENT: &str = include_str!("../../../wit/ostraca-entity.wit");
const GUEST: &str = include_str!("fixtures/guest-0.1.0.wat");

/// The text of each interface of a package without its comments, and the imports and exports of each world.
fn parts(wit: &str) -> (BTreeMap<String, String>, BTreeMap<String, Vec<String>>) {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("ostraca-entity.wit", wit).unwrap();
    let mut printer = WitPrinter::default();
    printer.emit_docs(false);
    printer.print(&resolve, package, &[]).unwrap();
    let text = printer.output.to_string();
    // An interface ends at the first brace without indentation.
    let interfaces = text.split("\ninterface ").skip(1).map(|rest| {
        let body = rest.split("\n}").next().unwrap();
        (body.split(' ').next().unwrap().to_owned(), body.to_owned())
    });
    let interfaces: BTreeMap<_, _> = interfaces.collect();
    let package = &resolve.packages[package];
    assert_eq!(interfaces.len(), package.interfaces.len(), "{text}");
    let worlds = package.worlds.iter().map(|(name, world)| {
        let world = &resolve.worlds[*world];
        let names = |of: &mut dyn Iterator<Item = &WorldKey>, which: &str| -> Vec<String> {
            of.map(|key| format!("{which} {}", resolve.name_world_key(key))).collect()
        };
        let mut all = names(&mut world.imports.keys(), "import");
        all.extend(names(&mut world.exports.keys(), "export"));
        (name.clone(), all)
    });
    (interfaces, worlds.collect())
}

#[test]
fn a_published_interface_never_changes() {
    let (published, worlds) = parts(PUBLISHED);
    let (current, current_worlds) = parts(CURRENT);
    assert!(published.len() >= 8, "{:?}", published.keys());
    for (name, text) in &published {
        let now = current.get(name).unwrap_or_else(|| panic!("`{name}` is gone"));
        assert_eq!(now, text, "`{name}` changed: put additions into a new, optional interface");
    }
    for (name, published) in worlds {
        let now = &current_worlds[&name];
        for part in &published {
            assert!(now.contains(part), "the world `{name}` has lost: {part}");
        }
        // A new import is optional, since a component imports only what it uses. A new export would not be.
        let exports = |all: &[String]| all.iter().filter(|it| it.starts_with("export")).count();
        assert_eq!(exports(now), exports(&published), "exports of `{name}`");
    }
}

#[tokio::test]
async fn a_component_built_for_0_1_0_runs_unchanged() {
    let component = wat::parse_str(GUEST).unwrap();
    let digest = blake3::hash(&component).to_string();
    assert!(GUEST.contains(&digest), "the fixture is a different component: {digest}");
    let program = prepare(&host(), &component, InstanceLimits::default());
    let methods: Vec<_> = program
        .methods()
        .iter()
        .map(|method| (method.name.as_str(), method.kind, method.summary.as_str()))
        .collect();
    let expected = [("add", MessageKind::Command, "counts"), ("get", MessageKind::Query, "")];
    assert_eq!(methods, expected);
    let mut entity = started(&program, "e").await;
    assert_eq!(ok(&ask(&mut entity, "get", "").await), "0");
    let turn = send(&mut entity, "add", "").await;
    assert_eq!(ok(&turn), "1");
    assert_eq!(turn.writes, [("count".into(), Some("1".into()))]);
    assert_eq!(ok(&send(&mut entity, "add", "").await), "2");
    assert_eq!(ok(&ask(&mut entity, "get", "").await), "2");
}

#[tokio::test]
async fn the_wit_alone_is_enough_to_write_a_guest() {
    let program = prepare(&host(), &build("plain", BARE), InstanceLimits::default());
    assert_eq!(program.methods().len(), 5);
    assert_eq!(program.methods()[0].summary, "Adds a line: the sender, the time, and the body.");
    let mut book = started(&program, "e").await;
    assert_eq!(refused(&ask(&mut book, "draw", "").await).0, "empty");
    for number in 0..5 {
        assert_eq!(ok(&send(&mut book, "sign", "hello").await), number.to_string());
    }
    let time = values(7).utc_ms;
    let line = format!("alice at {time}: hello");
    assert_eq!(ok(&ask(&mut book, "read", "").await), [&*line; 5].join("\n"));
    let drawn = ok(&ask(&mut book, "draw", "").await).to_owned();
    assert_eq!(ok(&ask(&mut book, "draw", "").await), drawn, "the same turn draws the same line");
    ok(&send(&mut book, "tear", "3").await);
    assert_eq!(refused(&send(&mut book, "tear", "3").await).0, "no-such-line");
    assert_eq!(ok(&ask(&mut book, "read", "").await), [&*line; 4].join("\n"));
    assert_eq!(refused(&send(&mut book, "burn", "").await).0, "unknown-method");
    assert!(send(&mut book, "close", "").await.passivate);
    let turn = book.stop(StopReason::Passivated, values(9), TurnRecords::default()).await;
    assert_eq!(turn.writes, [("closed".into(), Some("yes".into()))]);
}
