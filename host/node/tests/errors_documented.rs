//! Every error code that a user can see has a row in `docs/errors.md`, and the page has no row without a code.
//!
//! The codes are read from the source, since most of them are literals next to their texts. Codes occur in four
//! forms only: constants, arms of `code` functions, `code:` fields, and the first argument of the few functions
//! that create a problem. A new form must be added here.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ostraca_wire::close_code::CloseCode;

/// The source texts that a code follows, directly or after white space.
const MAKERS: [&str; 14] = [
    "problem(",
    "trouble(",
    "limit(",
    "guest(",
    "host(",
    "Failure::usage(",
    "Failure::unexpected(",
    "Failure::new(Exit::Usage,",
    "Failure::new(Exit::Unreachable,",
    "input.at_with(",
    "ConfigError::unreadable(",
    "Text { code:",
    "code:",
    "=> (",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    fs::read_to_string(root().join("docs/errors.md")).expect("docs/errors.md")
}

/// The rows' codes: the first cell, in backticks.
fn documented() -> BTreeSet<String> {
    page()
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(code, _)| code.to_owned())
        .filter(|code| looks_like_a_code(code))
        .collect()
}

fn looks_like_a_code(text: &str) -> bool {
    text.len() > 2
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
}

/// The sources of the host's crates, without their tests.
fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    let mut folders: Vec<_> = fs::read_dir(root().join("host"))
        .expect("host/")
        .map(|entry| entry.expect("an entry").path().join("src"))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" && name != "conformance" {
                folders.push(path);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                let text = fs::read_to_string(&path).expect("a source");
                let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                sources.push((path, text.to_owned()));
            }
        }
    }
    sources
}

/// The contents of the string literal at the start of `rest`, after white space.
fn literal(rest: &str) -> Option<&str> {
    rest.trim_start().strip_prefix('"')?.split_once('"').map(|(text, _)| text)
}

fn codes_of(path: &Path, text: &str) -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    let mut take = |rest: &str| {
        codes.extend(literal(rest).filter(|text| looks_like_a_code(text)).map(str::to_owned));
    };
    for maker in MAKERS {
        text.match_indices(maker).for_each(|(at, _)| take(&text[at + maker.len()..]));
    }
    // Arms of `fn code`, in any file.
    for (at, _) in text.match_indices("fn code(").chain(text.match_indices("fn open_code(")) {
        let body = text[at..].split("\n    }\n").next().unwrap_or_default();
        let body = body.split("\n}\n").next().unwrap_or_default();
        body.match_indices("=> ").for_each(|(at, _)| take(&body[at + 3..]));
    }
    if path.ends_with("core/src/message.rs") {
        text.match_indices(": &str =").for_each(|(at, _)| take(&text[at + 8..]));
    }
    if path.ends_with("fault.rs") {
        // The one code that depends on a condition.
        text.match_indices("let code = ").for_each(|(at, _)| {
            let line = text[at..].lines().next().unwrap_or_default();
            line.match_indices("{ ").for_each(|(at, _)| take(&line[at + 2..]));
        });
    }
    codes
}

#[test]
fn every_code_has_its_row_and_every_row_its_code() {
    let documented = documented();
    let mut codes: BTreeSet<String> =
        CloseCode::ALL.iter().map(|code| code.name().to_owned()).collect();
    let mut all = String::new();
    for (path, text) in sources() {
        codes.extend(codes_of(&path, &text));
        all.push_str(&text);
    }
    // If the forms above no longer match the source, the test proves nothing.
    assert!(codes.len() >= 110, "only {} codes found: {codes:?}", codes.len());
    let missing: Vec<_> = codes.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/errors.md has no row for {missing:?}");
    let stale: Vec<_> =
        documented.iter().filter(|code| !all.contains(&format!("\"{code}\""))).collect();
    assert!(stale.is_empty(), "docs/errors.md has rows for {stale:?}, which no source has");
}

#[test]
fn every_code_has_one_row() {
    let page = page();
    for code in documented() {
        let rows = page.lines().filter(|line| line.starts_with(&format!("| `{code}` |"))).count();
        assert_eq!(rows, 1, "{code}");
    }
}
