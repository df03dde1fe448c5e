//! Every test that `docs/coverage.md` names exists.

use std::fs;
use std::path::Path;

fn read(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            read(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(&path).expect("a source"));
        }
    }
}

#[test]
fn every_test_named_in_the_coverage_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = String::new();
    for folder in ["host", "guest-sdk", "examples", "tests"] {
        read(&root.join(folder), &mut sources);
    }
    let page = fs::read_to_string(root.join("docs/coverage.md")).expect("docs/coverage.md");
    // A test's name states a rule, so it has at least four words; names of fields and files have fewer.
    let is_a_test = |text: &&str| {
        text.matches('_').count() >= 3
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let named: Vec<_> = page.split('`').skip(1).step_by(2).filter(is_a_test).collect();
    assert!(named.len() > 100, "only {} names found", named.len());
    let missing: Vec<_> = named
        .into_iter()
        .filter(|name| !["(", "<"].iter().any(|end| sources.contains(&format!("fn {name}{end}"))))
        .collect();
    assert!(missing.is_empty(), "docs/coverage.md names {missing:?}, which do not exist");
}
