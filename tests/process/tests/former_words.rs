//! Words that the project no longer uses in code, strings, comments and documents, each with its replacement.
//!
//! Confusing at first: an identifier is split into its words, so `ControlTalk` and `control_talk` both contain
//! `talk`. Only whole words count: `lifecycle` and `lifetime` are not `life`.

use std::fs;
use std::path::{Path, PathBuf};

use ostraca_process_tests::artifacts;
use regex::Regex;

/// Former words, in lower case, and their replacements.
const FORMER: &[(&str, &str)] = &[
    ("bury", "mark dead"),
    ("buried", "marked dead"),
    ("books", "ledger"),
    ("desk", "AdminService"),
    ("door", "ClientService, gateway"),
    ("goodbye", "leave, left"),
    ("handoff", "hand-off"),
    ("has not the", "lacks the"),
    ("life", "incarnation; of a setting: ttl"),
    ("mend", "fix"),
    ("misproposal", "invalid move"),
    ("nought", "zero"),
    ("of which rows", "whose"),
    ("opener", "resolver"),
    ("parcel", "pending message"),
    ("patience", "timeout, limit, switch timer"),
    ("piece", "fragment"),
    ("pieces", "fragments"),
    ("road", "peer state"),
    ("talk", "control message"),
    ("talks", "control messages"),
    ("talker", "control link"),
    ("talkers", "control links"),
    ("unfit", "unrunnable"),
    ("unheard", "manager silence"),
];

/// Files that need a former word.
const ALLOWED: &[(&str, &str)] = &[
    ("host/http/src/bounded.rs", "a function of h3's trait is named so"),
    ("host/config/src/config/renamed.rs", "former names of settings, refused with the new one"),
    ("host/config/src/config/tests.rs", "the same"),
    ("host/config/src/config/tests/texts.rs", "names of settings in the reference texts"),
    ("docs/settings-of-the-texts.md", "the same"),
    ("host/config/src/manifest.rs", "former names of a manifest's keys, refused with the new one"),
    ("host/config/src/manifest/tests.rs", "the same"),
    ("tests/mutants/core.survived", "quotes source lines"),
    ("tests/mutants/equivalent.md", "quotes source lines"),
    ("tests/process/tests/former_words.rs", "this list"),
];

const PLACES: &[&str] = &[
    "host",
    "guest-sdk",
    "wit",
    "examples",
    "tests",
    "docs",
    "deploy",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
];
const ENDINGS: &[&str] =
    &["rs", "md", "toml", "proto", "wit", "txt", "json", "err", "tsv", "service", "survived"];

/// The words of a text in lower case, with identifiers split. Each word is preceded and followed by a space.
fn words(text: &str, hump: &Regex, word: &Regex) -> String {
    let split = hump.replace_all(text, "$1 $2");
    let words: Vec<_> = word.find_iter(&split).map(|it| it.as_str().to_lowercase()).collect();
    format!(" {} ", words.join(" "))
}

fn files(at: &Path, into: &mut Vec<PathBuf>) {
    if at.is_dir() {
        for entry in fs::read_dir(at).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.file_name().is_none_or(|name| name != "target" && name != "corpus") {
                files(&path, into);
            }
        }
    } else if at.extension().and_then(|end| end.to_str()).is_some_and(|end| ENDINGS.contains(&end))
    {
        into.push(at.to_owned());
    }
}

#[test]
fn former_words_are_gone() {
    let (hump, word) = patterns();
    let root = artifacts::root();
    let mut all = Vec::new();
    for place in PLACES {
        files(&root.join(place), &mut all);
    }
    assert!(all.len() > 400, "{}", all.len());
    let absent: Vec<_> = ALLOWED.iter().filter(|(file, _)| !root.join(file).is_file()).collect();
    assert!(absent.is_empty(), "remove them from ALLOWED: {absent:?}");
    let mut found = Vec::new();
    for file in all {
        let path = file.strip_prefix(&root).expect("below the root").display().to_string();
        if ALLOWED.iter().any(|(allowed, _)| path == *allowed) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            let line = words(line, &hump, &word);
            for (former, current) in FORMER {
                if line.contains(&format!(" {former} ")) {
                    found.push(format!("{path}:{}: `{former}`, now: {current}", number + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "former words: {found:#?}");
}

#[test]
fn fields_are_not_documented_by_a_pronoun() {
    let root = artifacts::root();
    let mut all = Vec::new();
    files(&root.join("host"), &mut all);
    files(&root.join("guest-sdk"), &mut all);
    files(&root.join("tests"), &mut all);
    let empty = Regex::new(r"^\s*/// (?:Which|Whose|Who|What)\.$").expect("a pattern");
    let mut found = Vec::new();
    for file in all {
        let text = fs::read_to_string(&file).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            if empty.is_match(line) {
                found.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "say what the reader does not know from name and type: {found:#?}");
}

#[test]
fn identifiers_are_split_into_words() {
    let (hump, word) = patterns();
    let split = |text| words(text, &hump, &word);
    assert_eq!(split("ControlTalk, control_talk(life2)"), " control talk control talk life ");
    assert_eq!(split("lifecycle"), " lifecycle ");
}

/// Patterns for the boundary within a name in camel case, and for a word.
fn patterns() -> (Regex, Regex) {
    let regex = |text| Regex::new(text).expect("a pattern");
    (regex("([a-z0-9])([A-Z])"), regex("[A-Za-z]+"))
}
