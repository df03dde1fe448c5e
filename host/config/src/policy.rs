//! The cluster's policy: which principals have which roles, and what a role permits.
//!
//! A policy is written in TOML. The cluster keeps it in one row, and every node decides by it. A cluster without that
//! row has the [default policy](Policy::default_toml). What a request needs is decided where the request is handled;
//! here is only what a principal has.
//!
//! Two kinds of principal are not subject to the policy. A *node* may do everything, since whoever has its key could
//! read and write the cluster's state anyway. An *entity* may send what the manifests of both types allow.
//!
//! Confusing at first: a type's manifest also restricts who may message the type, under `[access]`. A message needs
//! both; all other requests need only the policy.

mod check;
mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ostraca_codes::codes;
use ostraca_core::names;
use ostraca_token::Issuer;

use crate::user_file::{SourceText, UserFileError};
pub(crate) use check::check_principal_pattern;
use file::PolicyFile;

pub use check::is_name;
pub use ostraca_http::ANONYMOUS;

/// An invalid policy.
pub type PolicyError = UserFileError;

/// Maximum size of a policy's text in bytes: a row of the cluster has at most 64 KiB.
pub const MAX_POLICY_BYTES: usize = 63 << 10;

/// One thing that a role may permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Permission {
    /// Send commands to entities.
    Command,
    /// Send queries to entities, and follow their channels.
    Query,
    /// Send operators' commands to entities: delete, import, restart or forget one; resend or drop dead letters.
    Manage,
    /// See deployments, entities and dead letters, without the data in them. With all types: also the cluster's
    /// status, shards and events.
    View,
    /// See the data of entities: values, dead letters' bodies, exports.
    ReadState,
    /// Deploy, activate, roll back and undeploy.
    Deploy,
    /// Drain, forget and rebalance nodes; move shards; back up; change the cluster's settings and format.
    Operate,
    /// Change who may do what.
    Administer,
}

impl Permission {
    /// All permissions, in the order of the documentation.
    pub const ALL: &'static [Self] = &[
        Self::Command,
        Self::Query,
        Self::Manage,
        Self::View,
        Self::ReadState,
        Self::Deploy,
        Self::Operate,
        Self::Administer,
    ];

    /// Its name in a policy.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Query => "query",
            Self::Manage => "manage",
            Self::View => "view",
            Self::ReadState => "read-state",
            Self::Deploy => "deploy",
            Self::Operate => "operate",
            Self::Administer => "administer",
        }
    }

    /// The permission with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|permission| permission.name() == name)
    }

    /// Whether it concerns the cluster and no single type. A grant that is restricted to some types never gives it.
    #[must_use]
    pub fn is_cluster_wide(self) -> bool {
        matches!(self, Self::Operate | Self::Administer)
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The roles that every policy has, with what they permit.
pub const BUILT_IN_ROLES: &[(&str, &[Permission])] = &[
    ("operator", Permission::ALL),
    ("deployer", &[Permission::View, Permission::Deploy]),
    ("client", &[Permission::Command, Permission::Query]),
    ("viewer", &[Permission::View]),
];

/// A set of permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PermissionSet(u16);

impl PermissionSet {
    fn of(permissions: &[Permission]) -> Self {
        Self(permissions.iter().fold(0, |bits, it| bits | (1 << *it as u8)))
    }

    fn contains(self, permission: Permission) -> bool {
        self.0 & (1 << permission as u8) != 0
    }
}

/// Whether a pattern (a name, or the beginning of a name followed by `*`) matches a name.
#[must_use]
pub fn pattern_matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

/// The entity types to which a role or a grant is restricted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Scope {
    namespaces: Vec<String>,
    types: Vec<String>,
}

impl Scope {
    fn includes(&self, namespace: &str, entity_type: &str) -> bool {
        self.includes_namespace(namespace)
            && self.types.iter().any(|it| pattern_matches(it, entity_type))
    }

    fn includes_namespace(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|it| pattern_matches(it, namespace))
    }

    fn describe(&self) -> String {
        let types = self.types.join(", ");
        match self.namespaces.iter().any(|it| it == "*") {
            true => types,
            false => format!("{types} in the namespaces {}", self.namespaces.join(", ")),
        }
    }

    fn is_everything(&self) -> bool {
        let all = |patterns: &[String]| patterns.iter().any(|it| it == "*");
        all(&self.namespaces) && all(&self.types)
    }
}

#[derive(Clone, Debug)]
struct Role {
    permissions: PermissionSet,
    scope: Scope,
}

#[derive(Clone, Debug)]
struct Grant {
    principals: Vec<String>,
    roles: Vec<String>,
    scope: Scope,
}

/// A valid policy.
#[derive(Clone, Debug)]
pub struct Policy {
    roles: BTreeMap<String, Role>,
    grants: Vec<Grant>,
    issuers: Vec<Issuer>,
    token_ttl: Duration,
    revocation_staleness: Duration,
    web_origins: Vec<String>,
}

impl Policy {
    /// Parses a policy. Errors refer to it as `name`.
    ///
    /// # Errors
    /// [`PolicyError`] with `invalid-policy`, and the line marked.
    pub fn parse(text: &str, name: &str) -> Result<Self, PolicyError> {
        let input = SourceText { code: codes::INVALID_POLICY, name, text, renamed: &[] };
        if text.len() > MAX_POLICY_BYTES {
            let why = format!("{} bytes exceed the limit of {MAX_POLICY_BYTES}", text.len());
            return Err(input.at(&[], why, None));
        }
        check::policy(&input, input.parse::<PolicyFile>()?)
    }

    /// The policy of a cluster that never set one, with comments.
    #[must_use]
    pub fn default_toml() -> &'static str {
        include_str!("policy/default.toml")
    }

    /// How long a node that cannot read the policy and the revocations still accepts clients
    /// (`revocation-staleness`; default 5 min, 1 s to 24 h). Error `access-unknown`.
    #[must_use]
    pub fn revocation_staleness(&self) -> Duration {
        self.revocation_staleness
    }

    /// Whose tokens the cluster accepts.
    #[must_use]
    pub fn issuers(&self) -> &[Issuer] {
        &self.issuers
    }

    /// How long a token may last from now on (`token-ttl`; default 24 h, 1 min to 30 days). Error `invalid-token`.
    #[must_use]
    pub fn token_ttl(&self) -> Duration {
        self.token_ttl
    }

    /// What a principal, written `client/alice`, may do.
    #[must_use]
    pub fn permissions(&self, principal: &str) -> Permissions {
        if principal.starts_with("node/") {
            return Permissions::everything();
        }
        let mut permissions = Permissions::default();
        for grant in &self.grants {
            if !grant.principals.iter().any(|it| names(it, principal)) {
                continue;
            }
            for name in &grant.roles {
                // The check of the policy has made sure that the role exists.
                let Some(role) = self.roles.get(name) else { continue };
                if !permissions.roles.contains(name) {
                    permissions.roles.push(name.clone());
                }
                permissions.rules.push(Rule {
                    permissions: role.permissions,
                    scopes: [role.scope.clone(), grant.scope.clone()],
                });
            }
        }
        permissions
    }

    /// Whether some grant names the principal of requests without a token ([`ANONYMOUS`]).
    #[must_use]
    pub fn admits_anonymous(&self) -> bool {
        self.grants.iter().any(|grant| grant.principals.iter().any(|it| it == ANONYMOUS))
    }

    /// Whether web pages of this origin may send requests over HTTP (`web-origins`; default none).
    #[must_use]
    pub fn admits_origin(&self, origin: &str) -> bool {
        self.web_origins.iter().any(|it| it == "*" || it == origin)
    }

    /// Whether some principal other than a node may change the policy.
    #[must_use]
    pub fn has_administrator(&self) -> bool {
        self.grants.iter().any(|grant| {
            grant.scope.is_everything()
                && grant.principals.iter().any(|it| it != ANONYMOUS)
                && grant.roles.iter().filter_map(|name| self.roles.get(name)).any(|role| {
                    role.permissions.contains(Permission::Administer) && role.scope.is_everything()
                })
        })
    }
}

/// Whether a grant to `pattern` is one to this principal.
fn names(pattern: &str, principal: &str) -> bool {
    match principal {
        ANONYMOUS => pattern == ANONYMOUS,
        principal => pattern_matches(pattern, principal),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    permissions: PermissionSet,
    /// Of the role and of the grant; both must include a type.
    scopes: [Scope; 2],
}

/// What one principal may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    roles: Vec<String>,
    rules: Vec<Rule>,
}

impl Permissions {
    fn everything() -> Self {
        let scope = Scope { namespaces: vec!["*".into()], types: vec!["*".into()] };
        let permissions = PermissionSet::of(Permission::ALL);
        Self {
            roles: vec!["operator".into()],
            rules: vec![Rule { permissions, scopes: [scope.clone(), scope] }],
        }
    }

    /// Whether the principal has a permission on a type.
    #[must_use]
    pub fn allow(&self, permission: Permission, namespace: &str, entity_type: &str) -> bool {
        self.rules.iter().any(|rule| {
            rule.permissions.contains(permission)
                && rule.scopes.iter().all(|scope| scope.includes(namespace, entity_type))
        })
    }

    /// Whether the principal has a permission on a type, named as the cluster does ([`mod@names`]).
    #[must_use]
    pub fn allow_on(&self, permission: Permission, name: &str) -> bool {
        let (namespace, entity_type) = names::split(name);
        self.allow(permission, namespace, entity_type)
    }

    /// Whether the principal has any permission on a type, named as the cluster does.
    #[must_use]
    pub fn allow_any_on(&self, name: &str) -> bool {
        Permission::ALL.iter().any(|it| self.allow_on(*it, name))
    }

    /// Whether the principal has any permission in a namespace. Without one, it must not learn whether the namespace
    /// exists.
    #[must_use]
    pub fn allow_in(&self, namespace: &str) -> bool {
        let includes = |scope: &Scope| scope.includes_namespace(namespace);
        self.rules.iter().any(|rule| rule.scopes.iter().all(includes))
    }

    /// Whether the principal has a permission on all types, and thus on the cluster.
    #[must_use]
    pub fn allow_everywhere(&self, permission: Permission) -> bool {
        self.rules.iter().any(|rule| {
            rule.permissions.contains(permission) && rule.scopes.iter().all(Scope::is_everything)
        })
    }

    /// Whether the principal has a permission on some type.
    #[must_use]
    pub fn allow_somewhere(&self, permission: Permission) -> bool {
        self.rules.iter().any(|rule| rule.permissions.contains(permission))
    }

    /// Whether the principal has any permission on a type.
    #[must_use]
    pub fn allow_any(&self, namespace: &str, entity_type: &str) -> bool {
        Permission::ALL.iter().any(|it| self.allow(*it, namespace, entity_type))
    }

    /// Whether the principal has no role at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What the principal may do, for display: patterns of types, and the permissions on them.
    #[must_use]
    pub fn listed(&self) -> Vec<(String, Vec<Permission>)> {
        let mut listed: Vec<(String, Vec<Permission>)> = Vec::new();
        for rule in &self.rules {
            let types = match rule.scopes.iter().all(Scope::is_everything) {
                true => "all types, and the cluster".to_owned(),
                false => {
                    let scopes = rule.scopes.iter().filter(|scope| !scope.is_everything());
                    scopes.map(Scope::describe).collect::<Vec<_>>().join(" that also match ")
                }
            };
            let everywhere = types.starts_with("all types");
            let granted = |it: &Permission| {
                rule.permissions.contains(*it) && (everywhere || !it.is_cluster_wide())
            };
            let granted: Vec<_> = Permission::ALL.iter().copied().filter(granted).collect();
            match listed.iter_mut().find(|(known, _)| *known == types) {
                Some((_, known)) => {
                    known.extend(granted);
                    known.sort_unstable();
                    known.dedup();
                }
                None => listed.push((types, granted)),
            }
        }
        listed
    }

    /// The names of the principal's roles.
    #[must_use]
    pub fn roles(&self) -> &[String] {
        &self.roles
    }
}
