//! Checks that the tables of `docs/errors.md` are those of this crate. `BLESS=1 cargo test -p ostraca-codes --test
//! page` rewrites them; everything else on the page is prose, and is kept.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ostraca_codes::{Class, Code, Retry, SECTIONS, Section};

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md")
}

fn header(class: Class) -> String {
    let last = match class {
        Class::Status => "Clears automatically?",
        Class::CommandLine => "Exit",
        _ => "Again?",
    };
    format!("| Code | What happened | What to do | {last} |\n|---|---|---|---|\n")
}

fn row(code: Code) -> String {
    let row = code.row();
    let last = match (row.class, row.exit, row.retry) {
        (Class::CommandLine, exit, _) => exit.expect("an exit code").to_string(),
        (_, _, Retry::Yes) => "yes".into(),
        (_, _, Retry::YesIf(condition)) => format!("yes, {condition}"),
        (_, _, Retry::No) => "no".into(),
    };
    format!("| `{code}` | {} | {} | {last} |\n", row.happened, row.help)
}

fn table(section: &Section) -> String {
    let rows: String = section.codes.iter().copied().map(row).collect();
    header(section.class) + &rows
}

/// The page with the tables of this crate. A row without a code, such as "any other", is prose.
fn with_tables(page: &str) -> String {
    let mut rendered = String::new();
    let mut section = None;
    for line in page.split_inclusive('\n') {
        if let Some(title) = line.strip_prefix("## ") {
            section = SECTIONS.iter().find(|it| it.class.title() == title.trim_end());
        }
        match section {
            Some(section) if line.starts_with("| Code |") => rendered.push_str(&table(section)),
            Some(_) if line.starts_with("|---") || line.starts_with("| `") => {}
            _ => rendered.push_str(line),
        }
    }
    rendered
}

#[test]
fn page_has_the_tables_of_the_code() {
    let page = fs::read_to_string(path()).expect("docs/errors.md");
    let rendered = with_tables(&page);
    if std::env::var_os("BLESS").is_some() {
        fs::write(path(), rendered).expect("docs/errors.md");
        return;
    }
    let differs = page.lines().zip(rendered.lines()).find(|(page, rendered)| page != rendered);
    assert_eq!(differs, None, "BLESS=1 rewrites the tables");
    assert_eq!(page.len(), rendered.len(), "BLESS=1 rewrites the tables");
    for section in &SECTIONS {
        assert!(page.contains(&table(section)), "no table under {:?}", section.class.title());
    }
}

#[test]
fn names_are_unique_and_lower_case() {
    let mut names = BTreeSet::new();
    for code in SECTIONS.iter().flat_map(|section| section.codes) {
        assert!(names.insert(code.as_str()), "`{code}` has two rows");
        assert!(code.starts_with(|c: char| c.is_ascii_lowercase()), "{code}");
        assert!(code.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{code}");
        assert_eq!(Code::named(code), Some(*code));
    }
    assert_eq!(Code::named("no-such-code"), None);
}

#[test]
fn cells_fit_into_a_table() {
    for code in SECTIONS.iter().flat_map(|section| section.codes) {
        let row = code.row();
        assert!(!row.happened.is_empty() && !row.help.is_empty(), "{code}");
        assert!(![row.happened, row.help].concat().contains(['|', '\n']), "{code}");
    }
}
