//! Checks that the modules of a crate have no import cycle: siblings, each with its submodules, import one another in
//! one direction only. A parent and its child may import each other, but outside of tests a child names what it
//! imports: `use super::*` would hide what the two share.
//!
//! Confusing at first: paths are found in the text, not by a compiler. Comments, tests and macro output are
//! ignored; a name that the crate's root re-exports counts as its module's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use ostraca_process_tests::artifacts;
use regex::Regex;

type Module = Vec<String>;
type Graph = BTreeMap<String, BTreeSet<String>>;

struct Patterns {
    path: Regex,
    list: Regex,
    comment: Regex,
    reexport: Regex,
}

impl Patterns {
    fn new() -> Self {
        let regex = |text: &str| Regex::new(text).expect("a pattern");
        Self {
            path: regex(r"\b(crate|super|self)((?:::\w+)+)?(::\{)?"),
            list: regex(r"^\s*((?:\w+::)*\w+)"),
            comment: regex(r"//[^\n]*"),
            reexport: regex(r"(?m)^pub(?:\(crate\))? use ((?:\w+::)+)(\{[^}]*\}|\w+);"),
        }
    }
}

/// The modules of a crate with their source text, without tests.
fn modules(dir: &Path, above: &[String], patterns: &Patterns, into: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let mut module = above.to_vec();
        if path.is_dir() {
            if name != "tests" && name != "bin" {
                module.push(name);
                modules(&path, &module, patterns, into);
            }
        } else if path.extension().is_some_and(|end| end == "rs") && name != "tests" {
            if !["lib", "main", "mod"].contains(&name.as_str()) {
                module.push(name);
            }
            let text = fs::read_to_string(&path).expect("a source");
            let text = patterns.comment.replace_all(&text, "");
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            into.entry(module).or_default().push_str(text);
        }
    }
}

/// The content after an opening brace, up to the closing one, split at its commas.
fn items(text: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut found) = (0_usize, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(&text[begin..at]);
                return found;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The names that the crate's root re-exports from its modules.
fn reexports(root: &str, patterns: &Patterns) -> BTreeMap<String, Module> {
    let mut found = BTreeMap::new();
    for captures in patterns.reexport.captures_iter(root) {
        let module: Module =
            captures[1].split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        for name in captures[2].trim_matches(['{', '}']).split(',') {
            let name = name.split_whitespace().next_back().unwrap_or_default();
            found.insert(name.to_owned(), module.clone());
        }
    }
    found
}

/// Which sibling imports which, grouped by parent.
fn imports(modules: &BTreeMap<Module, String>, patterns: &Patterns) -> BTreeMap<Module, Graph> {
    let reexports = modules.get(&Vec::new()).map(|root| reexports(root, patterns));
    let reexports = reexports.unwrap_or_default();
    let mut graphs: BTreeMap<Module, Graph> = BTreeMap::new();
    for (module, text) in modules {
        for captures in patterns.path.captures_iter(text) {
            let mut base = if &captures[1] == "crate" { Vec::new() } else { module.clone() };
            if &captures[1] == "super" {
                base.pop();
            }
            let parts = captures.get(2).map_or("", |parts| parts.as_str());
            for part in parts.split("::").filter(|part| !part.is_empty()) {
                if part == "super" {
                    base.pop();
                } else {
                    base.push(part.to_owned());
                }
            }
            let mut paths = vec![base.clone()];
            if let Some(brace) = captures.get(3) {
                for item in items(&text[brace.end()..]) {
                    let Some(item) = patterns.list.captures(item) else { continue };
                    let rest = item[1].split("::").filter(|part| *part != "self");
                    paths.push(base.iter().cloned().chain(rest.map(str::to_owned)).collect());
                }
            }
            for mut path in paths {
                if let Some(home) = path.first().and_then(|name| reexports.get(name)) {
                    path = home.clone();
                }
                while !path.is_empty() && !modules.contains_key(&path) {
                    path.pop();
                }
                let same = path.iter().zip(module).take_while(|(a, b)| a == b).count();
                if same < path.len() && same < module.len() {
                    let graph = graphs.entry(path[..same].to_vec()).or_default();
                    graph.entry(module[same].clone()).or_default().insert(path[same].clone());
                }
            }
        }
    }
    graphs
}

/// Modules that reach themselves, in groups of modules that reach one another.
fn cycles(graph: &Graph) -> BTreeSet<Vec<String>> {
    let reach = |from: &String| {
        let mut reached = BTreeSet::new();
        let mut left: Vec<_> = graph.get(from).into_iter().flatten().collect();
        while let Some(next) = left.pop() {
            if reached.insert(next) {
                left.extend(graph.get(next).into_iter().flatten());
            }
        }
        reached
    };
    let all: BTreeMap<_, _> = graph.keys().map(|module| (module, reach(module))).collect();
    let mut found = BTreeSet::new();
    for (module, reached) in &all {
        if reached.contains(module) {
            let back = |other: &&&String| all.get(**other).is_some_and(|it| it.contains(*module));
            found.insert(reached.iter().filter(back).map(|name| (*name).clone()).collect());
        }
    }
    found
}

/// The crates in a directory of the repository.
fn crates_in(folder: &str) -> Vec<PathBuf> {
    let crates: Vec<_> = fs::read_dir(artifacts::root().join(folder))
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.join("Cargo.toml").is_file() && path.join("src").is_dir())
        .collect();
    assert!(crates.len() >= 3, "{folder}: {crates:?}");
    crates
}

#[test]
fn no_module_imports_everything_of_its_parent() {
    let patterns = Patterns::new();
    let mut crates = crates_in("host");
    crates.extend(crates_in("tests"));
    crates.push(artifacts::root().join("guest-sdk"));
    let mut found = Vec::new();
    for path in crates {
        let mut all = BTreeMap::new();
        modules(&path.join("src"), &[], &patterns, &mut all);
        for (module, text) in all {
            if text.contains("use super::*") {
                found.push(format!("{}: {}", path.display(), module.join("::")));
            }
        }
    }
    assert!(found.is_empty(), "`use super::*` outside of tests: {found:#?}");
}

#[test]
fn no_modules_of_a_crate_import_each_other_in_a_cycle() {
    let patterns = Patterns::new();
    let mut crates = crates_in("host");
    crates.push(artifacts::root().join("guest-sdk"));
    let mut found = BTreeSet::new();
    for path in crates {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let mut all = BTreeMap::new();
        modules(&path.join("src"), &[], &patterns, &mut all);
        assert!(!all.is_empty(), "{name} has no sources");
        for (parent, graph) in imports(&all, &patterns) {
            for cycle in cycles(&graph) {
                found.insert((name.to_owned(), parent.join("::"), cycle));
            }
        }
    }
    assert!(found.is_empty(), "modules import each other in a cycle: {found:#?}");
}

#[test]
fn a_cycle_through_a_list_or_a_reexport_is_found() {
    let patterns = Patterns::new();
    let module = |path: &str, text: &str| {
        let path = path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        (path, text.to_owned())
    };
    let all: BTreeMap<Module, String> = [
        module("", "pub use a::Named;"),
        module("a", "use crate::{c::Other, b::Thing};"),
        module("b", "use super::d;"),
        module("b::inner", "fn f() -> crate::Named { todo!() }"),
        module("c", "use crate::d::{One, Two};"),
        module("d", ""),
    ]
    .into();
    let graphs = imports(&all, &patterns);
    let cycle = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(cycles(&graphs[&Vec::new()]), BTreeSet::from([cycle]));
}
