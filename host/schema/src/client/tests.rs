use proc_macro2::{TokenStream, TokenTree};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LANGUAGES: [Language; 3] = [Language::TypeScript, Language::Python, Language::Rust];

fn written(language: Language, name: &str, arguments: &str, result: &str) -> String {
    let add = Method { name, is_command: true, summary: "Adds.", arguments, result };
    let methods = [add, Method { name: "get", is_command: false, ..add }];
    typed_client(language, &EntityType { name: "order-line", revision: 3, methods: &methods })
}

/// The line that begins like this, without what surrounds it.
fn line<'t>(text: &'t str, start: &str) -> &'t str {
    let found = text.lines().map(str::trim).find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("no line begins with {start:?}:\n{text}"))
}

/// Parameters by name, of which the last may be left out.
const ARGUMENTS: &str = r##"{"type":"object","properties":{
    "kind":{"$ref":"#/$defs/Kind"},"count":{"type":"integer","format":"uint32"},
    "class":{"type":["string","null"]}},"required":["kind","count"],"additionalProperties":false,
    "$defs":{"Kind":{"oneOf":[
        {"type":"string","const":"large-one"},
        {"type":"object","properties":{"other":{"type":"object","properties":{"of":{"$ref":"#/$defs/Kind"}},
            "required":["of"]}},"required":["other"],"additionalProperties":false}]}}}"##;
const RESULT: &str = r##"{"type":"object","additionalProperties":{"$ref":"#/$defs/Line"},"$defs":{
    "Line":{"type":"object","properties":{"size-in-cm":{"type":"number"},"parts":{"type":"array",
        "items":{"$ref":"#/$defs/Line"}},"note":{"type":"string"}},"required":["size-in-cm","parts"]}}}"##;

#[test]
fn typescript_has_the_shapes_of_schemas() {
    let code = written(Language::TypeScript, "add", ARGUMENTS, RESULT);
    assert_eq!(line(&code, "export type Kind"), "export type Kind = \"large-one\" | KindOther;");
    assert_eq!(line(&code, "other:"), "other: KindOtherOther;");
    assert_eq!(line(&code, "\"size-in-cm\""), "\"size-in-cm\": number;");
    assert_eq!(line(&code, "note"), "note?: string;");
    assert_eq!(
        line(&code, "async add"),
        "async add(kind: Kind, count: number, class_?: string | null, options?: CallOptions): Promise<Record<string, Line>> {"
    );
    assert_eq!(
        line(&code, "return (await this.entity.command"),
        "return (await this.entity.command<Record<string, Line>>(\"add\", { kind, count, [\"class\"]: class_ }, options)).value;"
    );
    assert!(code.contains("this.entity.query<"), "{code}");
    assert!(code.contains("export class OrderLineEntity {"), "{code}");
}

#[test]
fn python_has_the_shapes_of_schemas() {
    let code = written(Language::Python, "add", ARGUMENTS, RESULT);
    assert_eq!(line(&code, "Kind:"), r#"Kind: TypeAlias = "Literal[\"large-one\"] | KindOther""#);
    assert_eq!(line(&code, "Line = "), "Line = TypedDict(");
    assert_eq!(line(&code, "\"note\""), "\"note\": \"NotRequired[str]\",");
    assert_eq!(
        line(&code, "async def add"),
        "async def add(self, kind: Kind, count: int, class_: str | None = None, *, options: CallOptions | None = None) -> dict[str, Line]:"
    );
    assert_eq!(
        line(&code, "reply = await self.entity.command"),
        "reply = await self.entity.command(\"add\", {\"kind\": kind, \"count\": count, **({} if class_ is None else {\"class\": class_})}, options)"
    );
}

#[test]
fn rust_has_the_shapes_of_schemas() {
    let code = written(Language::Rust, "add", ARGUMENTS, RESULT);
    syn::parse_file(&code).expect("Rust");
    assert_eq!(line(&code, "LargeOne"), "LargeOne,");
    assert_eq!(line(&code, "Other("), "Other(Box<KindOtherOther>),");
    assert_eq!(line(&code, "pub of:"), "pub of: Box<Kind>,");
    assert_eq!(line(&code, "pub parts:"), "pub parts: Vec<Line>,");
    assert_eq!(line(&code, "pub note:"), "pub note: Option<String>,");
    assert_eq!(
        line(&code, "pub async fn add"),
        "pub async fn add(&self, kind: Kind, count: u32, class: Option<String>, options: &CallOptions) -> Result<BTreeMap<String, Line>, InvokeError> {"
    );
    assert!(code.contains("#[serde(rename = \"size-in-cm\")]"), "{code}");
}

#[test]
fn a_method_without_a_schema_takes_and_returns_anything() {
    let of = |language| written(language, "add", "", "");
    assert!(of(Language::TypeScript).contains("add(body: unknown, options"));
    assert!(of(Language::Python).contains("add(self, body: Any, *"));
    let rust = of(Language::Rust);
    assert!(rust.contains("add(&self, body: Value, options") && rust.contains("Result<Value"));
}

#[test]
fn types_of_one_name_are_one_only_if_they_are_equal() {
    let line = |schema: &str| {
        format!(
            r##"{{"type":"array","items":{{"$ref":"#/$defs/W"}},"$defs":{{
            "W":{{"type":"object","properties":{{"of":{{"$ref":"#/$defs/L"}}}}}},"L":{schema}}}}}"##
        )
    };
    let (text, number) = (line(r#"{"type":"string"}"#), line(r#"{"type":"number"}"#));
    let same = written(Language::TypeScript, "add", "true", &text);
    assert_eq!(same.matches("interface W").count(), 1, "{same}");
    let method =
        |name, result| Method { name, is_command: true, summary: "", arguments: "", result };
    let methods = [method("a", &text), method("b", &number)];
    let entity_type = EntityType { name: "t", revision: 1, methods: &methods };
    let different = typed_client(Language::TypeScript, &entity_type);
    assert!(different.contains("interface W2"), "{different}");
    assert!(different.contains("Promise<Array<W2>>"), "{different}");
}

#[test]
fn a_definition_of_nothing_but_itself_is_anything() {
    for defs in [
        r##"{"A":{"$ref":"#/$defs/A"}}"##,
        r##"{"A":{"$ref":"#/$defs/B"},"B":{"anyOf":[{"$ref":"#/$defs/A"},{"type":"null"}]}}"##,
        r##"{"A":{"anyOf":[{"$ref":"#/$defs/A"},{"type":"string"}]}}"##,
    ] {
        let schema = format!(r##"{{"$ref":"#/$defs/A","$defs":{defs}}}"##);
        let code = written(Language::TypeScript, "add", "true", &schema);
        assert!(code.contains("= unknown;"), "{code}");
    }
}

/// Texts that would be code if they were not written as names, strings and comments.
const HOSTILE: [&str; 12] = [
    "*/ evil(); /*",
    "\"\"\"\nevil()\n\"\"\"",
    "\"); evil(); (\"",
    "```\nevil()\n```",
    "a\nb",
    "\u{202e}x\u{2028}evil()",
    "\\",
    "class",
    "__init__",
    "constructor",
    "\"]: evil(), [\"",
    "${evil()}`'#{evil()}",
];

/// Schemas from keywords that matter here, with hostile texts.
fn schemas() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(&HOSTILE[..]);
    let leaf = prop_oneof![
        Just(json!(true)),
        prop::sample::select(&["string", "integer", "number", "null", "array", "object", "?"][..])
            .prop_map(|name| json!({"type": name})),
        text.clone().prop_map(|text| json!({"const": text})),
        prop::collection::vec(text.clone(), 0..3).prop_map(|all| json!({"enum": all})),
        prop::sample::select(&["#", "#/$defs/a", "#/$defs/b", "#/x", "other"][..])
            .prop_map(|to| json!({"$ref": to})),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        let text = prop::sample::select(&HOSTILE[..]);
        let all = prop::collection::vec(inner.clone(), 0..4);
        let members = prop::collection::btree_map(text.clone(), inner.clone(), 0..4);
        prop_oneof![
            (members, text, any::<bool>()).prop_map(|(members, text, required)| {
                let names: Vec<_> = members.keys().copied().filter(|_| required).collect();
                json!({"type": "object", "properties": members, "required": names,
                       "description": text, "title": text})
            }),
            all.clone().prop_map(|all| json!({"anyOf": all})),
            all.clone().prop_map(|all| json!({"prefixItems": all, "type": "array"})),
            inner.clone().prop_map(|it| json!({"type": ["array", "null"], "items": it})),
            inner.prop_map(|it| json!({"type": "object", "additionalProperties": it})),
        ]
    })
}

/// Whether some tokens are `evil()`. A method of that name has parameters.
fn calls_evil(tokens: TokenStream) -> bool {
    let mut before = false;
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(name) => {
            before = name == "evil";
            false
        }
        TokenTree::Group(group) => {
            let is_call = before && group.stream().is_empty();
            before = false;
            is_call || calls_evil(group.stream())
        }
        _ => {
            before = false;
            false
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_a_component_says_is_no_code(
        arguments in schemas(), result in schemas(), (a, b) in (schemas(), schemas()),
        (name, summary) in (prop::sample::select(&HOSTILE[..]), prop::sample::select(&HOSTILE[..])),
    ) {
        let with = |mut schema: Value| {
            if let Value::Object(members) = &mut schema {
                members.insert("$defs".into(), json!({"a": a, "b": b}));
            }
            schema.to_string()
        };
        let (arguments, result) = (with(arguments), with(result));
        let method = Method { name, is_command: true, summary, arguments: &arguments, result: &result };
        let entity_type = EntityType { name, revision: 1, methods: &[method, method] };
        for language in LANGUAGES {
            let code = typed_client(language, &entity_type);
            prop_assert!(code.len() < 100_000, "{} bytes", code.len());
            // Nothing but what is written here begins a line, so no text has ended its comment or its string.
            let known = ["//", "/*", "import", "export", "}", "async", "readonly", "constructor(",
                "this.", "return", "from", "class", "entity", "#", "\"", "def", "self.", "async def",
                "reply", "await", "result:", "use", "pub", "impl", "struct", "let", "Self", "session", "{", ")", "]"];
            for line in code.lines().map(str::trim).filter(|line| !line.is_empty()) {
                let is_declared = line.chars().next().is_some_and(|it| it.is_ascii_alphanumeric() || it == '_');
                prop_assert!(is_declared || known.iter().any(|start| line.starts_with(start)), "{line}");
                prop_assert!(!line.starts_with("evil("), "{code}");
            }
            if language == Language::Rust {
                let parsed = syn::parse_file(&code);
                prop_assert!(parsed.is_ok(), "{:?}\n{code}", parsed.err());
                prop_assert!(!calls_evil(code.parse().expect("tokens")), "{code}");
            }
        }
    }
}
