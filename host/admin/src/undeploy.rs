//! Undeploys a type: removes its row, so that messages to it are refused (`unknown-type`).
//!
//! A type is undeployed only if nothing of it is left: no entity, no record that a deletion has yet to remove, no tell
//! that has yet to leave, no dead letter. Heads of deleted entities may remain; they hold what must never fall, so the
//! next deployment of the type continues its revisions. The binding remains too (R23).
//!
//! An entity that a message creates between the check and the removal is not lost: its records stay in the store, and
//! the next deployment reaches them. The answer counts such entities.

use ostraca_catalog::types::unknown_type;
use ostraca_codes::codes;
use ostraca_core::ids::Entity;
use ostraca_core::records::Head;
use ostraca_gateway::Gateway;
use ostraca_store::{ScanKind, ScannedRecord};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{Problem, UndeployRequest, UndeployResult};
use ostraca_wire::server::AdminOutput;

use super::AdminService;
use super::pages::Taken;

/// How many entities are counted of which something is left.
const COUNTED: usize = 1_000;

impl AdminService {
    pub(super) async fn undeploy(
        &self,
        gateway: &Gateway,
        principal: &str,
        request: UndeployRequest,
    ) -> Result<AdminOutput, Problem> {
        let name = request.r#type;
        if !self.deployer.is_deployed(&name).await? {
            if self.remove_variables(&name).await? {
                let revision = 0;
                return Ok(AdminOutput::Undeployed(UndeployResult {
                    r#type: name,
                    revision,
                    left: 0,
                }));
            }
            return Err(unknown_type(&gateway.types.snapshot(), &name));
        }
        let left = self.left_of(&name).await?;
        if let Some(entity) = left.first() {
            let and_more = if left.len() == 1 { "" } else { ", and others" };
            let text = format!("`{name}` cannot be undeployed: {entity} is left{and_more}");
            let help = "delete its entities and drop its dead letters first, or use `ostraca undeploy --delete-state`; what was just deleted may take a moment to be removed";
            return Err(problem(codes::TYPE_IN_USE, text, help));
        }
        let revision = self.deployer.undeploy(principal, &name).await?;
        // Nobody who deploys a type of this name later shall inherit its secrets. If this fails, undeploying again ends
        // it.
        self.remove_variables(&name).await?;
        let left = self.left_of(&name).await?.len() as u64;
        Ok(AdminOutput::Undeployed(UndeployResult { r#type: name, revision, left }))
    }

    /// Entities of a type of which something is left, at most [`COUNTED`].
    async fn left_of(&self, name: &str) -> Result<Vec<Entity>, Problem> {
        let mut left = Vec::new();
        let add = |_, record| match record {
            ScannedRecord::Head(entity, head)
                if *entity.entity_type == *name && has_remains(&head) =>
            {
                left.push(entity);
                Taken::Added
            }
            _ => Taken::Skipped,
        };
        // A pool that this node does not know yet may have entities of the type.
        let (_, pools) = self.read_pools().await?;
        self.read_page(1..=pools.shard_count(), ScanKind::Heads, &[], COUNTED, add).await?;
        Ok(left)
    }
}

/// Whether an entity has anything besides its head and its lanes. What cannot be decoded counts.
fn has_remains(head: &Head) -> bool {
    !head.deleted || head.is_purged() != Ok(false) || head.outbox_counts() != Ok((0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_is_left_until_everything_is_removed() {
        assert!(has_remains(&Head::default()));
        let mut head = Head { deleted: true, ..Head::default() };
        assert!(!has_remains(&head));
        head.set_outbox_counts((0, 1)).expect("fits");
        assert!(has_remains(&head), "a dead letter");
        head.set_outbox_counts((0, 0)).expect("fits");
        head.set_purged(true).expect("fits");
        assert!(has_remains(&head), "its deletion has yet to remove records");
    }
}
