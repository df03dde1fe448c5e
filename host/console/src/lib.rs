//! The console: a web page for operators. Its files are in the program, so it needs nothing besides the node.
//!
//! The page is made of plain ECMAScript modules; there is no build step. It asks the node's HTTP gateway for what it
//! shows (`/v1/admin/…`), and sends messages like any other caller. Texts of entities, nodes and errors reach the page
//! only as text (`dom.js`), never as markup.

/// A file of the console.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Its name, without a directory.
    pub name: &'static str,
    /// The type with which it is served.
    pub content_type: &'static str,
    /// What is in it.
    pub bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal)*) => {
        &[$(File {
            name: $name,
            content_type: content_type($name),
            bytes: include_bytes!(concat!("../page/", $name)),
        }),*]
    };
}

/// All files.
pub const FILES: &[File] = files![
    "api.js"
    "confirm.js"
    "dom.js"
    "events-view.js"
    "cluster-view.js"
    "dead-letters-view.js"
    "entities-view.js"
    "entity-view.js"
    "format.js"
    "icon.svg"
    "index.html"
    "live.js"
    "main.js"
    "moves-view.js"
    "pause-plot.js"
    "rollout-form.js"
    "rows.js"
    "send-form.js"
    "shard-map.js"
    "style.css"
    "type-choice.js"
    "types-view.js"
];

/// The file with this name.
#[must_use]
pub fn file(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

const fn content_type(name: &str) -> &'static str {
    match name.as_bytes() {
        [.., b'.', b'j', b's'] => "text/javascript; charset=utf-8",
        [.., b'.', b'c', b's', b's'] => "text/css; charset=utf-8",
        [.., b'.', b's', b'v', b'g'] => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn text(file: &File) -> &'static str {
        std::str::from_utf8(file.bytes).expect("text")
    }

    #[test]
    fn every_file_of_the_page_is_served() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        let found = std::fs::read_dir(dir)
            .expect("the page")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
        let served: BTreeSet<_> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(served, found.collect());
        assert!(file("index.html").is_some() && file("../Cargo.toml").is_none());
    }

    #[test]
    fn nothing_makes_markup_of_text_or_asks_elsewhere() {
        let forbidden = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "eval(",
            "new Function",
            "srcdoc",
            "setHTML",
            "createContextualFragment",
            "localStorage",
        ];
        for file in FILES {
            let text = text(file);
            for word in forbidden {
                assert!(!text.contains(word), "{}: {word}", file.name);
            }
            // The only addresses are names of XML namespaces.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http:") && !text.contains("https:"), "{}", file.name);
        }
    }

    #[test]
    fn the_document_has_no_inline_code() {
        let html = text(file("index.html").expect("the document"));
        assert!(
            !html.contains("style=") && !html.contains("<style") && !html.contains(" on"),
            "{html}"
        );
        assert_eq!(
            html.matches("<script").count(),
            html.matches("<script type=\"module\" src=").count()
        );
    }
}
