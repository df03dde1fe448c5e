//! Shows and replaces the cluster's policy, by compare-and-set on its row.

use ostraca_catalog::rows::{self, PolicyRow};
use ostraca_codes::codes;
use ostraca_config::Policy;
use ostraca_config::policy::Permission;
use ostraca_core::extensions::Extensions;
use ostraca_store::StoredRow;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{PolicyRequest, PolicyState, Problem};
use ostraca_wire::server::AdminOutput;

use super::AdminService;
use super::catalog_problem::to_problem;
use super::standing::Caller;

impl AdminService {
    pub(super) async fn policy(
        &self,
        caller: Caller<'_>,
        request: PolicyRequest,
    ) -> Result<AdminOutput, Problem> {
        let principal = caller.principal;
        let store = &*self.deployer.cluster_store;
        let before = rows::read::<PolicyRow>(store, rows::POLICY).await.map_err(to_problem)?;
        let Some(text) = request.text else {
            return Ok(AdminOutput::Policy(match before {
                Some((row, _)) => PolicyState { revision: row.revision, text: row.text },
                None => PolicyState { revision: 0, text: Policy::default_toml().into() },
            }));
        };
        let policy = Policy::parse(&text, "policy").map_err(|error| {
            let help = error.help_text().unwrap_or("`ostraca policy check FILE` marks the line");
            problem(error.code(), error.to_string(), help)
        })?;
        let revision = before.as_ref().map_or(0, |(row, _)| row.revision);
        if let Some(expected) = request.expected_revision
            && expected != revision
        {
            let text = format!("the policy has revision {revision}, expected {expected}");
            let help = "read it with `ostraca policy show`, and repeat the change";
            return Err(problem(codes::POLICY_CHANGED, text, help));
        }
        let issued = principal.strip_prefix("token/").and_then(|rest| rest.split_once('/'));
        let has_issuer = issued
            .is_none_or(|(issuer, _)| policy.issuers().iter().any(|known| known.name() == issuer));
        let keeps_right =
            has_issuer && policy.permissions(principal).allow_everywhere(Permission::Administer);
        if !request.force && !keeps_right {
            let text = format!("under this policy, `{principal}` could not change it again");
            let help = "grant it a role with `administer` on all types, or add `--force`";
            return Err(problem(codes::POLICY_LOCK_OUT, text, help));
        }
        let (at, extensions) = match before {
            Some((row, at)) => (Some(at), row.extensions),
            None => (None, Extensions::default()),
        };
        let row = PolicyRow { revision: revision + 1, text, extensions };
        self.check_administrator(caller).await?;
        let at = rows::write(store, rows::POLICY, at, &row).await.map_err(to_problem)?;
        let value = rows::encode_value(&row).map_err(to_problem)?;
        // This node must not admit by the former policy until its watch reports the new one.
        self.access.on_row_changed(&StoredRow { key: rows::POLICY.into(), revision: at, value });
        tracing::info!(principal, revision = row.revision, "the policy was changed");
        Ok(AdminOutput::Policy(PolicyState { revision: row.revision, text: row.text }))
    }
}
