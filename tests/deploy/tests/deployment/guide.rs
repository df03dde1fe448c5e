//! The guides in `deploy/`: their links, and the figures that they quote.

use std::path::Path;

use ostraca_deploy_tests::{root, text};

const GUIDES: [&str; 3] =
    ["deploy/README.md", "deploy/compose/README.md", "deploy/kubernetes/README.md"];

/// The anchor of a heading, as hosts of repositories make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

#[test]
fn links_of_the_guides_resolve() {
    let mut checked = 0;
    for guide in GUIDES {
        let page = text(guide);
        let folder = root().join(Path::new(guide).parent().expect("a folder"));
        for rest in page.split("](").skip(1) {
            let link = rest.split(')').next().expect("a link");
            let (file, wanted) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { root().join(guide) } else { folder.join(file) };
            assert!(file.exists(), "{guide}: {link}");
            if !wanted.is_empty() {
                let target = std::fs::read_to_string(&file).expect("a page");
                let mut headings = target.lines().filter(|line| line.starts_with('#'));
                let found = headings.any(|it| anchor(it.trim_start_matches('#')) == wanted);
                assert!(found, "{guide}: {link}");
            }
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} links");
}

#[test]
fn sizing_quotes_measured_figures_only() {
    let (guide, measured) = (text(GUIDES[0]), text("docs/performance.md"));
    let table = guide.split_once("| | Measured |").expect("the table").1;
    let mut checked = 0;
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        // Names of measurements, such as P5, are no figures.
        for word in row.split(|it: char| !it.is_alphanumeric() && !".,".contains(it)) {
            let figure = word.trim_matches(['.', ',']);
            if figure.starts_with(|it: char| it.is_ascii_digit()) {
                let known = |it: &str| it.trim_matches(['.', ',']) == figure;
                let mut words =
                    measured.split(|it: char| !it.is_alphanumeric() && !".,".contains(it));
                assert!(words.any(known), "{figure} is not in docs/performance.md");
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "only {checked} figures");
}
