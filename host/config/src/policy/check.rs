//! Checks a policy beyond what its types express.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_token::Issuer;

use super::file::{IssuerSection, PolicyFile};
use super::{
    ANONYMOUS, BUILT_IN_ROLES, Grant, Permission, PermissionSet, Policy, PolicyError, Role, Scope,
};
use crate::user_file::{SourceText, closest_name};

const NAMES: &str = "1 to 64 lower-case letters, digits and dashes, starting with a letter";
/// The shortest and the longest `token-ttl`.
const TTL: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(30 * 24 * 3_600));
/// The shortest and the longest `revocation-staleness`.
const STALENESS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(24 * 3_600));
/// Maximum length of the name of a role or an issuer, in bytes.
const NAME: usize = 64;

pub(super) fn policy(input: &SourceText<'_>, file: PolicyFile) -> Result<Policy, PolicyError> {
    let mut roles = BTreeMap::new();
    for (name, permissions) in BUILT_IN_ROLES {
        let scope = Scope { namespaces: vec!["*".into()], types: vec!["*".into()] };
        let permissions = PermissionSet::of(permissions);
        roles.insert((*name).to_owned(), Role { permissions, scope });
    }
    for (name, section) in file.roles {
        let path = ["roles", &name];
        if roles.contains_key(&name) {
            let why = format!("the role `{name}` exists already and cannot be changed");
            return Err(input.at(&path, why, Some("choose another name".into())));
        }
        if !is_name(&name) {
            let why = format!("{name:?} is not a name for a role");
            return Err(input.at(&path, why, Some(NAMES.into())));
        }
        let scope = Scope { namespaces: section.namespaces, types: section.types };
        check_scope(input, &path, &scope)?;
        let permissions = permissions(input, &name, &section.permissions, &scope)?;
        roles.insert(name, Role { permissions, scope });
    }
    let mut grants = Vec::new();
    for (index, section) in file.grants.into_iter().enumerate() {
        let index = index.to_string();
        for (at, principal) in section.principals.iter().enumerate() {
            if let Err(why) = check_principal_pattern(principal, &["client", "token"]) {
                let path = ["grants", &index, "principals", &at.to_string()];
                let help = match principal.split_once('/') {
                    Some(("node", _)) => "leave it out: nodes may do everything",
                    Some(("entity", _)) => {
                        "leave it out: manifests decide what entities may send to each other"
                    }
                    _ => {
                        "write \"*\", \"client/NAME\", \"token/ISSUER/SUBJECT\", \"anonymous\", or the beginning of one with a `*` at the end"
                    }
                };
                return Err(input.at(&path, why, Some(help.into())));
            }
        }
        for (at, name) in section.roles.iter().enumerate() {
            if !roles.contains_key(name) {
                let path = ["grants", &index, "roles", &at.to_string()];
                let known: Vec<_> = roles.keys().map(String::as_str).collect();
                let help = match closest_name(name, known.iter().copied()) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => format!("the roles are: {}", known.join(", ")),
                };
                return Err(input.at(&path, format!("there is no role `{name}`"), Some(help)));
            }
        }
        for (what, list) in [("principals", &section.principals), ("roles", &section.roles)] {
            if list.is_empty() {
                let why = format!("`{what}` is empty: the grant has no effect");
                return Err(input.at(
                    &["grants", &index, what],
                    why,
                    Some("remove the grant".into()),
                ));
            }
        }
        let scope = Scope { namespaces: section.namespaces, types: section.types };
        check_scope(input, &["grants", &index], &scope)?;
        grants.push(Grant { principals: section.principals, roles: section.roles, scope });
    }
    let issuers = issuers(input, file.issuers)?;
    let ttl = file.token_ttl;
    if !(TTL.0..=TTL.1).contains(&ttl) {
        let why = "`token-ttl` must be from 1 min to 30 days".into();
        return Err(input.at(&["token-ttl"], why, None));
    }
    let staleness = file.revocation_staleness;
    if !(STALENESS.0..=STALENESS.1).contains(&staleness) {
        let why = "`revocation-staleness` must be from 1 s to 24 h".into();
        return Err(input.at(&["revocation-staleness"], why, None));
    }
    for (at, origin) in file.web_origins.iter().enumerate() {
        if !is_origin(origin) {
            let why = format!("{origin:?} is not the origin of a web page");
            let help = "write \"https://HOST\" or \"https://HOST:PORT\" in lower case and without a path, or \"*\" for every page";
            return Err(input.at(&["web-origins", &at.to_string()], why, Some(help.into())));
        }
    }
    Ok(Policy {
        roles,
        grants,
        issuers,
        token_ttl: ttl,
        revocation_staleness: staleness,
        web_origins: file.web_origins,
    })
}

/// Whether a browser could send this as the header `origin`, or it stands for every page.
fn is_origin(text: &str) -> bool {
    let https = text.strip_prefix("https://").map(|host| (host, "443"));
    let http = || text.strip_prefix("http://").map(|host| (host, "80"));
    let Some((host, usual)) = https.or_else(http) else { return text == "*" };
    // The colons of an IPv6 address are in brackets.
    let (name, port) = match host.rfind(':').filter(|at| !host[*at..].contains(']')) {
        Some(at) => (&host[..at], Some(&host[at + 1..])),
        None => (host, None),
    };
    let consists = |text: &str, more: &[u8]| {
        let is_known =
            |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || more.contains(&it);
        !text.is_empty() && text.bytes().all(is_known)
    };
    let is_name = match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => consists(address, b":."),
        None => consists(name, b"-._"),
    };
    // Browsers leave the usual port out.
    is_name && port.is_none_or(|port| port != usual && port.parse::<u16>().is_ok())
}

fn issuers(
    input: &SourceText<'_>,
    sections: BTreeMap<String, IssuerSection>,
) -> Result<Vec<Issuer>, PolicyError> {
    let mut issuers: Vec<Issuer> = Vec::new();
    for (name, IssuerSection { issuer: iss, jwks }) in sections {
        if !is_name(&name) {
            let why = format!("{name:?} is not a name for an issuer");
            return Err(input.at(&["issuers", &name], why, Some(NAMES.into())));
        }
        if iss.is_empty() {
            let why = "`issuer` is empty".into();
            let help = "write what its tokens have as `iss`";
            return Err(input.at(&["issuers", &name, "issuer"], why, Some(help.into())));
        }
        if let Some(other) = issuers.iter().find(|other| other.iss() == iss) {
            let why = format!("the issuer `{}` has the same `issuer`", other.name());
            let help = "put all of its keys into one `jwks`";
            return Err(input.at(&["issuers", &name, "issuer"], why, Some(help.into())));
        }
        let issuer = Issuer::new(&name, &iss, &jwks).map_err(|why| {
            let help = "paste the issuer's public keys, as `ostraca token key` or the provider's `jwks_uri` shows them";
            input.at(&["issuers", &name, "jwks"], why, Some(help.into()))
        })?;
        issuers.push(issuer);
    }
    Ok(issuers)
}

/// Whether a role or an issuer could have this name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.len() <= NAME
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn permissions(
    input: &SourceText<'_>,
    role: &str,
    names: &[String],
    scope: &Scope,
) -> Result<PermissionSet, PolicyError> {
    let mut permissions = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let path = ["roles", role, "permissions", &at.to_string()];
        let Some(permission) = Permission::named(name) else {
            let known: Vec<_> = Permission::ALL.iter().map(|it| it.name()).collect();
            let help = match closest_name(name, known.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("the permissions are: {}", known.join(", ")),
            };
            return Err(input.at(&path, format!("there is no permission `{name}`"), Some(help)));
        };
        if permission.is_cluster_wide() && !scope.is_everything() {
            let why = format!(
                "`{name}` concerns the whole cluster, but the role is restricted to some types"
            );
            let help = "give it to a role of its own, without `types` and `namespaces`";
            return Err(input.at(&path, why, Some(help.into())));
        }
        permissions.push(permission);
    }
    Ok(PermissionSet::of(&permissions))
}

fn check_scope(input: &SourceText<'_>, path: &[&str], scope: &Scope) -> Result<(), PolicyError> {
    for (what, patterns) in [("namespaces", &scope.namespaces), ("types", &scope.types)] {
        for (at, pattern) in patterns.iter().enumerate() {
            if let Err(why) = check_pattern(pattern) {
                let at = at.to_string();
                let path = [path, &[what, &at]].concat();
                let help = "write a name, or the beginning of one with a `*` at the end";
                return Err(input.at(&path, why, Some(help.into())));
            }
        }
    }
    Ok(())
}

fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Err("a pattern is empty, and would match nothing".into());
    }
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    if name.contains('*') {
        return Err(format!("{pattern:?} has a `*` that is not at its end"));
    }
    Ok(())
}

/// Checks a pattern of principals: `*`, or a name of one of these kinds, or the beginning of one followed by `*`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_principal_pattern(pattern: &str, kinds: &[&str]) -> Result<(), String> {
    check_pattern(pattern)?;
    let known = |(kind, name): (&str, &str)| kinds.contains(&kind) && !name.is_empty();
    match pattern.split_once('/') {
        None if pattern == "*" || pattern == ANONYMOUS => Ok(()),
        Some(parts) if known(parts) => Ok(()),
        _ => Err(format!("{pattern:?} does not name a principal")),
    }
}
