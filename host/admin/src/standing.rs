//! Whether a caller still has the permissions that its request needed when it arrived.

use std::sync::Arc;

use ostraca_catalog::AccessRegistry;
use ostraca_config::policy::{Permission, Permissions};
use ostraca_wire::proto::Problem;
use ostraca_wire::server::{AdminOperation, AdminOutput, update_channel};

use super::AdminService;
use super::authorize::{self, Needed, is_diagnostic};
use super::catalog_problem::to_problem;

/// Who sends a request.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The principal.
    pub principal: &'a str,
    /// What a revocation may name: the principal and its credential.
    pub subjects: &'a [String],
}

impl AdminService {
    /// What a caller may do now, as far as this node knows.
    pub(super) fn permissions_now(&self, caller: Caller<'_>) -> Result<Arc<Permissions>, Problem> {
        let permissions = self.access.permissions(caller.principal, caller.subjects);
        permissions.map_err(|refused| refused.problem(caller.principal))
    }

    /// Refuses a change of who may do what, if the rows by now do not let the caller make it. To be called between the
    /// reading of the row that is changed and its compare-and-set. Otherwise, requests that wait could undo the
    /// revocation of the one who sent them.
    pub(super) async fn check_administrator(&self, caller: Caller<'_>) -> Result<(), Problem> {
        self.check_again(caller, &[Needed::Everywhere(Permission::Administer)]).await
    }

    /// Refuses what the rows by now do not let the caller do.
    pub(super) async fn check_again(
        &self,
        caller: Caller<'_>,
        needed: &[Needed],
    ) -> Result<(), Problem> {
        self.access.read(&*self.deployer.cluster_store).await.map_err(to_problem)?;
        authorize::check_all(caller.principal, &*self.permissions_now(caller)?, needed)
    }

    /// Ends the response to a request when the caller loses a permission that the request needs.
    pub(super) fn guard(&self, caller: Caller<'_>, request: &AdminOperation) -> Guard {
        Guard {
            access: self.access.clone(),
            principal: caller.principal.into(),
            subjects: caller.subjects.into(),
            needed: authorize::needed(request),
            diagnostic: is_diagnostic(request),
        }
    }
}

pub(super) struct Guard {
    access: AccessRegistry,
    principal: String,
    subjects: Vec<String>,
    needed: Vec<Needed>,
    diagnostic: bool,
}

impl Guard {
    /// The response; each part of a long one is sent only if the caller may still have it.
    pub(super) fn apply(self, output: AdminOutput) -> AdminOutput {
        let AdminOutput::Updates(mut parts) = output else { return output };
        let (sender, guarded) = update_channel();
        tokio::spawn(async move {
            loop {
                let part = tokio::select! {
                    part = parts.recv() => part,
                    () = sender.closed() => return,
                };
                let Some(part) = part else { return };
                let part = self.check().and(part);
                let ends = part.is_err();
                if sender.send(part).await.is_err() || ends {
                    return;
                }
            }
        });
        guarded
    }

    fn check(&self) -> Result<(), Problem> {
        let permissions = match self.diagnostic {
            true => self.access.last_known_permissions(&self.principal, &self.subjects),
            false => self.access.permissions(&self.principal, &self.subjects),
        };
        let permissions = permissions.map_err(|refused| refused.problem(&self.principal))?;
        authorize::check_all(&self.principal, &permissions, &self.needed)
    }
}
