//! What a caller may do, for programs that show only what is permitted.

use ostraca_config::policy::{Permission, Permissions};
use ostraca_wire::proto;

use super::AdminService;
use super::standing::Caller;

impl AdminService {
    /// The caller's permissions on everything, and on each deployed type.
    pub(super) fn who_am_i(&self, caller: Caller<'_>, permissions: &Permissions) -> proto::WhoAmI {
        let names = |granted: &dyn Fn(Permission) -> bool| -> Vec<String> {
            let granted = Permission::ALL.iter().filter(|it| granted(**it));
            granted.map(|it| it.name().to_owned()).collect()
        };
        let types = self.gateway.types.snapshot();
        let mut types: Vec<_> = types
            .values()
            .map(|entry| {
                let admitted = entry.manifest.access.allows(caller.principal);
                let granted = |it: Permission| {
                    let sends = matches!(it, Permission::Command | Permission::Query);
                    permissions.allow_on(it, &entry.name)
                        && !it.is_cluster_wide()
                        && (admitted || !sends)
                };
                let (r#type, permissions) = (entry.name.to_string(), names(&granted));
                proto::TypePermissions { r#type, permissions }
            })
            .filter(|it| !it.permissions.is_empty())
            .collect();
        types.sort_by(|one, other| one.r#type.cmp(&other.r#type));
        proto::WhoAmI {
            principal: caller.principal.to_owned(),
            roles: permissions.roles().to_vec(),
            everywhere: names(&|it| permissions.allow_everywhere(it)),
            types,
        }
    }
}
