//! The files that `ostraca new` writes: a small entity, with the sources of the SDK and the WIT package.

/// Sources of the SDK and the WIT, with their paths in this repository.
const VENDORED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/vendored.rs"));

/// Names that have another meaning for cargo or Rust.
pub(crate) const RESERVED: [&str; 51] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
    "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl",
    "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref",
    "return", "self", "static", "struct", "super", "test", "trait", "true", "try", "type",
    "typeof", "unsafe", "unsized", "use", "virtual", "where", "yield",
];

/// The project's files, with their paths in the project.
pub(crate) fn files(name: &str) -> Vec<(String, String)> {
    let entity = camel(name);
    let fill = |text: &str| text.replace("{name}", name).replace("{Entity}", &entity);
    let mut files = vec![
        ("Cargo.toml".into(), fill(include_str!("template/Cargo.toml.txt"))),
        ("entity.toml".into(), fill(include_str!("template/entity.toml.txt"))),
        ("src/lib.rs".into(), fill(include_str!("template/lib.rs.txt"))),
        ("README.md".into(), fill(include_str!("template/README.md.txt"))),
        (".gitignore".into(), "/target\n.ostraca/\n".into()),
    ];
    let vendored = VENDORED.iter();
    files.extend(vendored.map(|(path, text)| (format!("vendor/{path}"), (*text).to_owned())));
    files
}

/// `shopping-cart` becomes `ShoppingCart`.
fn camel(name: &str) -> String {
    let parts = name.split('-').filter(|part| !part.is_empty());
    parts.map(|part| part[..1].to_ascii_uppercase() + &part[1..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_has_the_sdk_and_the_wit_side_by_side() {
        let files = files("shopping-cart");
        let has = |path: &str| files.iter().any(|(it, _)| it == path);
        for path in [
            "src/lib.rs",
            "vendor/guest-sdk/Cargo.toml",
            "vendor/guest-sdk/src/lib.rs",
            "vendor/guest-sdk/src/host/sandbox.rs",
            "vendor/guest-sdk/macros/src/lib.rs",
            "vendor/wit/ostraca-entity.wit",
            "vendor/wit/deps/http.wit",
        ] {
            assert!(has(path), "{path}");
        }
        let text: String = files.iter().take(5).map(|(_, text)| text.as_str()).collect();
        assert!(text.contains("struct ShoppingCart") && !text.contains("{name}"));
    }

    #[test]
    fn the_template_manifest_is_valid() {
        let files = files("a");
        let (_, text) = files.iter().find(|(path, _)| path == "entity.toml").expect("a manifest");
        ostraca_node::Manifest::parse(text, "entity.toml").expect("a manifest");
    }
}
