//! The files that `ostraca new` writes: a small entity, with the sources of the SDK and the WIT package.

use crate::args::ProjectLanguage;

/// Sources of the SDKs and the WIT, with their paths in this repository.
const VENDORED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/vendored.rs"));

/// Names that have another meaning for cargo or Rust.
pub(crate) const RESERVED: [&str; 51] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
    "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl",
    "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref",
    "return", "self", "static", "struct", "super", "test", "trait", "true", "try", "type",
    "typeof", "unsafe", "unsized", "use", "virtual", "where", "yield",
];

/// The sources of the SDK for JavaScript and TypeScript, of the one for Python, and of the one for C.
const SCRIPT_SDK: &str = "guest-sdk/javascript/";
const PYTHON_SDK: &str = "guest-sdk/python/";
const C_SDK: &str = "guest-sdk/c/";
/// The compiler of a project in TypeScript, as in its `package.json`.
const TYPESCRIPT: &str = ",\n    \"typescript\": \"7.0.2\"";

/// The file with the entity of a project in this language.
pub(crate) fn source(language: ProjectLanguage) -> &'static str {
    match language {
        ProjectLanguage::Rust => "src/lib.rs",
        ProjectLanguage::Js => "src/entity.js",
        ProjectLanguage::Ts => "src/entity.ts",
        ProjectLanguage::Python => "entity.py",
        ProjectLanguage::C => "src/entity.c",
    }
}

/// The project's files, with their paths in the project.
pub(crate) fn files(name: &str, language: ProjectLanguage) -> Vec<(String, String)> {
    let entity = camel(name);
    let (extension, typescript) = match language {
        ProjectLanguage::Ts => ("ts", TYPESCRIPT),
        _ => ("js", ""),
    };
    let fill = |text: &str| {
        let text = text.replace("{name}", name).replace("{Entity}", &entity);
        text.replace("{ext}", extension).replace("{typescript}", typescript)
    };
    let source = source(language);
    let own: &[(&str, &str)] = match language {
        ProjectLanguage::Rust => &[
            ("Cargo.toml", include_str!("template/rust/Cargo.toml.txt")),
            (source, include_str!("template/rust/lib.rs.txt")),
            ("README.md", include_str!("template/rust/README.md.txt")),
        ],
        ProjectLanguage::Js => &[
            ("package.json", include_str!("template/script/package.json.txt")),
            (source, include_str!("template/script/entity.js.txt")),
            ("README.md", include_str!("template/script/README.md.txt")),
        ],
        ProjectLanguage::Ts => &[
            ("package.json", include_str!("template/script/package.json.txt")),
            ("tsconfig.json", include_str!("template/script/tsconfig.json.txt")),
            (source, include_str!("template/script/entity.ts.txt")),
            ("README.md", include_str!("template/script/README.md.txt")),
        ],
        ProjectLanguage::Python => &[
            ("pyproject.toml", include_str!("template/python/pyproject.toml.txt")),
            (source, include_str!("template/python/entity.py.txt")),
            ("README.md", include_str!("template/python/README.md.txt")),
        ],
        ProjectLanguage::C => &[
            (source, include_str!("template/c/entity.c.txt")),
            ("README.md", include_str!("template/c/README.md.txt")),
        ],
    };
    let manifest = match language {
        ProjectLanguage::Python => include_str!("template/python/entity.toml.txt"),
        _ => include_str!("template/entity.toml.txt"),
    };
    let mut files: Vec<_> =
        own.iter().map(|(path, text)| ((*path).to_owned(), fill(text))).collect();
    files.push(("entity.toml".into(), fill(manifest)));
    files.push((
        ".gitignore".into(),
        "/target\n/node_modules\n/.venv\n__pycache__/\n.ostraca/\n".into(),
    ));
    let is_in = |path: &str, sdk| path.starts_with(sdk) || path.starts_with("wit/");
    let is_needed = |path: &str| match language {
        ProjectLanguage::Rust => {
            ![SCRIPT_SDK, PYTHON_SDK, C_SDK].iter().any(|sdk| path.starts_with(sdk))
        }
        ProjectLanguage::Js | ProjectLanguage::Ts => is_in(path, SCRIPT_SDK),
        ProjectLanguage::Python => is_in(path, PYTHON_SDK),
        ProjectLanguage::C => is_in(path, C_SDK),
    };
    let vendored = VENDORED.iter().filter(|(path, _)| is_needed(path));
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
        let files = files("shopping-cart", ProjectLanguage::Rust);
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
        assert!(
            !has("vendor/guest-sdk/javascript/index.js") && !has("vendor/guest-sdk/c/ostraca.c")
        );
        let text: String = files.iter().take(5).map(|(_, text)| text.as_str()).collect();
        assert!(text.contains("struct ShoppingCart") && !text.contains("{name}"));
    }

    #[test]
    fn a_project_in_a_script_language_has_its_own_sdk() {
        for (language, checks_types) in [(ProjectLanguage::Js, false), (ProjectLanguage::Ts, true)]
        {
            let files = files("shopping-cart", language);
            let has = |path: &str| files.iter().any(|(it, _)| it == path);
            let sdk = ["index.js", "index.d.ts", "entity.js", "package.json"];
            assert!(sdk.iter().all(|name| has(&format!("vendor/guest-sdk/javascript/{name}"))));
            assert!(has("vendor/wit/ostraca-entity.wit") && !has("vendor/guest-sdk/src/lib.rs"));
            assert!(has(source(language)));
            assert_eq!(has("tsconfig.json"), checks_types);
            let (_, package) = files.iter().find(|(path, _)| path == "package.json").expect("one");
            let package: serde_json::Value = serde_json::from_str(package).expect("JSON");
            assert_eq!(package["main"], source(language));
            assert_eq!(package["devDependencies"].get("typescript").is_some(), checks_types);
        }
    }

    #[test]
    fn a_project_in_c_has_its_own_sdk() {
        let files = files("shopping-cart", ProjectLanguage::C);
        let has = |path: &str| files.iter().any(|(it, _)| it == path);
        for path in ["ostraca.h", "ostraca.c", "wasi.c"] {
            assert!(has(&format!("vendor/guest-sdk/c/{path}")), "{path}");
        }
        assert!(has("src/entity.c") && has("vendor/wit/ostraca-entity.wit"));
        assert!(!has("vendor/guest-sdk/src/lib.rs"));
    }

    #[test]
    fn the_template_manifest_is_valid() {
        for language in [ProjectLanguage::Rust, ProjectLanguage::Ts, ProjectLanguage::Python] {
            let files = files("a", language);
            let text = files.iter().find(|(path, _)| path == "entity.toml");
            ostraca_node::Manifest::parse(&text.expect("one").1, "entity.toml").expect("valid");
        }
    }

    #[test]
    fn a_project_in_python_has_its_own_sdk() {
        let files = files("shopping-cart", ProjectLanguage::Python);
        let text = |path: &str| files.iter().find(|(it, _)| it == path).map(|(_, text)| text);
        for path in ["__init__.py", "_entity.py", "_host.py", "_types.py", "_component.py"] {
            assert!(text(&format!("vendor/guest-sdk/python/ostraca_entity/{path}")).is_some());
        }
        assert!(text("vendor/wit/ostraca-entity.wit").is_some());
        assert!(text("vendor/guest-sdk/javascript/index.js").is_none());
        assert!(text("entity.py").is_some_and(|it| it.contains("class ShoppingCart(Entity)")));
    }
}
