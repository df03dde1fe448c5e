//! Lists dead letters page by page. Messages to their senders resend and drop them; this module only reads.

use bytes::Bytes;
use ostraca_catalog::types::unknown_type;
use ostraca_core::ids::Entity;
use ostraca_store::{ScanKind, ScannedRecord};
use ostraca_wire::proto::{DeadLetter, DeadLetters, DeadLettersRequest, Problem};
use ostraca_wire::server::AdminOutput;

use super::AdminService;
use super::entities::{VALUE, tell_to_wire};
use super::pages::Taken;

impl AdminService {
    pub(super) async fn dead_letters(
        &self,
        request: DeadLettersRequest,
    ) -> Result<AdminOutput, Problem> {
        let types = self.gateway.types.snapshot();
        let (mut shards, mut from) = (1..=self.shard_count(), None);
        if !request.r#type.is_empty() {
            let Some(entry) = types.get(request.r#type.as_str()) else {
                return Err(unknown_type(&types, &request.r#type));
            };
            if !request.id.is_empty() {
                let shard = self.shard_of(&entry.manifest, &request.id)?.0;
                shards = shard..=shard;
                from = Some(Entity::new(request.r#type.as_str(), request.id.as_str()));
            }
        }
        let mut dead_letters = Vec::new();
        let add = |_, record| {
            let ScannedRecord::DeadLetter(sender, number, tell) = record else {
                return Taken::Skipped;
            };
            if from.as_ref().is_some_and(|from| *from != sender) {
                return Taken::Ended;
            }
            if !request.r#type.is_empty() && *sender.entity_type != *request.r#type {
                return Taken::Skipped;
            }
            let shown = if request.values { tell.body.len().min(VALUE) } else { 0 };
            dead_letters.push(DeadLetter {
                r#type: sender.entity_type.to_string(),
                id: sender.id.to_string(),
                unix_ms: tell.utc_ms,
                // A slice would keep the whole body in memory.
                body: Bytes::copy_from_slice(&tell.body[..shown]),
                content_type: tell.content_type.to_string(),
                tell: Some(tell_to_wire(number, *tell)),
            });
            Taken::Added
        };
        let kind = ScanKind::DeadLetters { from: from.clone() };
        let limit = request.limit as usize;
        let next_cursor = self.read_page(shards, kind, &request.cursor, limit, add).await?;
        Ok(AdminOutput::DeadLetters(DeadLetters { dead_letters, next_cursor }))
    }
}
