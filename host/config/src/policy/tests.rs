use super::*;

fn policy(text: &str) -> Policy {
    Policy::parse(text, "policy.toml").unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn refused(text: &str) -> PolicyError {
    Policy::parse(text, "policy.toml").expect_err(text)
}

fn names(permissions: &Permissions, entity_type: &str) -> Vec<&'static str> {
    let allowed = |it: &&Permission| permissions.allow(**it, "default", entity_type);
    Permission::ALL.iter().filter(allowed).map(|it| it.name()).collect()
}

fn everywhere(permissions: &Permissions) -> Vec<&'static str> {
    let allowed = |it: &&Permission| permissions.allow_everywhere(**it);
    Permission::ALL.iter().filter(allowed).map(|it| it.name()).collect()
}

#[test]
fn by_default_admin_operates_and_clients_send() {
    let default = policy(Policy::default_toml());
    let admin = default.permissions("client/admin");
    assert_eq!(admin.roles(), ["operator", "client", "viewer"]);
    assert_eq!(everywhere(&admin).len(), Permission::ALL.len());
    let client = default.permissions("client/administrator");
    assert_eq!(client.roles(), ["client", "viewer"]);
    assert_eq!(everywhere(&client), ["command", "query", "view"]);
    assert!(default.permissions("token/ostraca/admin").is_empty());
    assert!(default.has_administrator());
}

#[test]
fn a_policy_without_grants_permits_nothing_but_to_nodes() {
    let empty = policy("");
    for stranger in ["client/admin", "client/a", "token/ostraca/admin", "entity/cart", ""] {
        assert!(empty.permissions(stranger).is_empty(), "{stranger}");
    }
    assert_eq!(everywhere(&empty.permissions("node/n1")).len(), Permission::ALL.len());
    assert!(!empty.has_administrator());
}

#[test]
fn role_and_grant_both_restrict_the_types() {
    let text = r#"
        [roles.support]
        permissions = ["view", "query"]
        types = ["cart", "order-*"]

        [[grants]]
        principals = ["client/bob"]
        roles = ["support"]
        types = ["order-*", "account"]
    "#;
    let bob = policy(text).permissions("client/bob");
    for (entity_type, expected) in [
        ("order-2024", &["query", "view"][..]),
        ("order-", &["query", "view"]),
        ("order", &[]),
        ("cart", &[]),
        ("account", &[]),
    ] {
        assert_eq!(names(&bob, entity_type), expected, "{entity_type}");
    }
    assert!(everywhere(&bob).is_empty() && bob.allow_any("default", "order-1"));
    assert!(!bob.allow_any("default", "cart"));
}

#[test]
fn a_grant_on_some_types_gives_nothing_cluster_wide() {
    let grant = "[[grants]]\nprincipals = [\"client/bob\"]\nroles = [\"operator\"]\n";
    let carts = policy(&format!("{grant}types = [\"cart\"]"));
    let bob = carts.permissions("client/bob");
    assert!(everywhere(&bob).is_empty(), "{bob:?}");
    assert!(bob.allow(Permission::Deploy, "default", "cart"));
    assert!(!bob.allow(Permission::Deploy, "default", "order"));
    assert!(!carts.has_administrator());
    assert!(policy(grant).has_administrator());
    let elsewhere = policy(&format!("{grant}namespaces = [\"other\"]"));
    assert!(!elsewhere.permissions("client/bob").allow_any("default", "cart"));
}

#[test]
fn a_grant_in_a_namespace_gives_nothing_elsewhere() {
    let grant = "[[grants]]\nprincipals = [\"client/bob\"]\nroles = [\"operator\"]\n";
    let acme = policy(&format!("{grant}namespaces = [\"acme\", \"shop-*\"]"));
    let bob = acme.permissions("client/bob");
    for name in ["acme:cart", "shop-1:cart"] {
        assert!(bob.allow_on(Permission::Deploy, name) && bob.allow_any_on(name), "{name}");
    }
    for name in ["cart", "evil:cart", "acme2:cart", "evil:acme:cart"] {
        assert!(!bob.allow_any_on(name), "{name}");
    }
    assert!(bob.allow_in("acme") && bob.allow_in("shop-1"));
    assert!(!bob.allow_in("default") && !bob.allow_in("evil"));
    assert!(everywhere(&bob).is_empty());
}

#[test]
fn grants_add_up_and_principals_match_by_beginning() {
    let text = r#"
        [[grants]]
        principals = ["client/shop-*", "token/corp/alice"]
        roles = ["client"]
        types = ["cart"]

        [[grants]]
        principals = ["*"]
        roles = ["viewer"]
    "#;
    let policy = policy(text);
    assert_eq!(names(&policy.permissions("client/shop-1"), "cart"), ["command", "query", "view"]);
    assert_eq!(names(&policy.permissions("client/shop"), "cart"), ["view"]);
    assert_eq!(
        names(&policy.permissions("token/corp/alice"), "cart"),
        ["command", "query", "view"]
    );
    // Other kinds, and subjects that only begin alike.
    for other in ["client/alice", "token/corp/alice2", "token/corp2/alice", "token/corp/al"] {
        assert_eq!(names(&policy.permissions(other), "cart"), ["view"], "{other}");
    }
}

#[test]
fn a_mistake_in_a_policy_is_marked_and_explained() {
    let grant = |principals: &str, roles: &str| {
        format!("[[grants]]\nprincipals = [{principals}]\nroles = [{roles}]\n")
    };
    let own = |permissions: &str| format!("[roles.own]\npermissions = [{permissions}]\n");
    for (text, line, why, help) in [
        ("[[grant]]\n".into(), 1, "unknown key `grant`", "did you mean `grants`?"),
        (
            grant("\"client/a\"", "\"operater\""),
            3,
            "no role `operater`",
            "did you mean \"operator\"?",
        ),
        (grant("\"alice\"", "\"client\""), 2, "does not name a principal", "client/NAME"),
        (grant("\"client/\"", "\"client\""), 2, "does not name a principal", "client/NAME"),
        (
            grant("\"node/n1\"", "\"client\""),
            2,
            "does not name a principal",
            "nodes may do everything",
        ),
        (grant("\"entity/a\"", "\"client\""), 2, "does not name a principal", "manifests decide"),
        (grant("\"client/*a\"", "\"client\""), 2, "not at its end", "at the end"),
        (grant("", "\"client\""), 2, "`principals` is empty", "remove the grant"),
        (grant("\"client/a\"", ""), 3, "`roles` is empty", "remove the grant"),
        (own("\"comand\""), 2, "no permission `comand`", "did you mean \"command\"?"),
        (own("\"operate\"") + "types = [\"cart\"]\n", 2, "whole cluster", "role of its own"),
        (own("\"query\"") + "types = [\"\"]\n", 3, "a pattern is empty", "a name"),
        ("revocation-staleness = \"500 ms\"\n".into(), 1, "from 1 s to 24 h", ""),
        ("[roles.viewer]\npermissions = []\n".into(), 1, "exists already", "another name"),
        ("[roles.Own]\npermissions = []\n".into(), 1, "not a name for a role", "lower-case"),
    ] {
        let error = refused(&text);
        assert_eq!((error.code(), error.line()), (codes::INVALID_POLICY, Some(line)), "{error}");
        assert!(error.to_string().contains(why), "{error}: {text}");
        assert!(
            error.help_text().unwrap_or_default().contains(help),
            "{:?}: {text}",
            error.help_text()
        );
    }
}

#[test]
fn a_policy_that_is_too_large_is_refused() {
    let text = format!("#{}", "x".repeat(MAX_POLICY_BYTES));
    let error = refused(&text);
    assert!(error.to_string().contains("exceed the limit of 64512"), "{error}");
    policy(&text[..MAX_POLICY_BYTES]);
}

#[test]
fn only_a_grant_that_names_it_is_for_anonymous() {
    let grant = |principal: &str, role: &str| {
        format!("[[grants]]\nprincipals = [{principal:?}]\nroles = [{role:?}]\n")
    };
    for pattern in ["*", "client/*", "anonymous"] {
        let policy = policy(&grant(pattern, "client"));
        let named = pattern == "anonymous";
        assert_eq!(policy.admits_anonymous(), named, "{pattern}");
        assert_eq!(policy.permissions("anonymous").is_empty(), !named, "{pattern}");
    }
    assert!(!policy(&grant("anonymous", "operator")).has_administrator());
    assert!(refused(&grant("anonymou*", "client")).to_string().contains("anonymou*"));
}

#[test]
fn origins_are_written_as_browsers_send_them() {
    let of = |origin: &str| Policy::parse(&format!("web-origins = [{origin:?}]"), "p");
    for origin in ["https://a.example", "http://a.example:8080", "http://[::1]:80801"] {
        let admits = of(origin).map(|policy| policy.admits_origin(origin));
        assert_eq!(admits.is_ok_and(|it| it), !origin.ends_with("80801"), "{origin}");
    }
    for wrong in [
        "a.example",
        "https://",
        "https://A.example",
        "https://a.example/",
        "https://a.example:443",
        "http://a.example:80",
        "https://a:b:c",
        "https://*.example",
        "ftp://a.example",
        "null",
    ] {
        assert!(of(wrong).is_err(), "{wrong}");
    }
    let any = policy("web-origins = [\"*\"]");
    assert!(any.admits_origin("https://evil.example") && any.admits_origin("null"));
    assert!(!policy("").admits_origin("null"));
}
