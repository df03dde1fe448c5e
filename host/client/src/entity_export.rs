//! The file format of an exported entity: an encoded `EntityExport` (`proto/ostraca/v1/admin.proto`).

use std::collections::BTreeMap;

use bytes::Bytes;
use ostraca_core::codec::CodecError;
use ostraca_core::ids::Entity;
use ostraca_core::records::Subscription;
use ostraca_core::shard::{ChannelCopy, EntityCopy, JournalCopy, TimerCopy};
use ostraca_wire::proto::EntityExport;
use prost::Message;

/// The highest format that this release reads.
const FORMAT: u32 = 2;

/// Encodes an export as the content of a file.
#[must_use]
pub fn encode_export(export: &EntityExport) -> Vec<u8> {
    export.encode_to_vec()
}

/// Decodes the content of a file.
///
/// # Errors
/// A text that says what is wrong.
pub fn decode_export(content: &[u8]) -> Result<EntityExport, String> {
    let export = EntityExport::decode(content).map_err(|error| error.to_string())?;
    match export.format {
        1..=FORMAT => Ok(export),
        0 => Err("it is not an exported entity".into()),
        format => Err(format!("it has format {format}, but this release reads {FORMAT}")),
    }
}

/// What an import of the export sends.
///
/// # Errors
/// [`CodecError`] if the subscriptions cannot be encoded.
pub(crate) fn copy_of(export: EntityExport) -> Result<EntityCopy, CodecError> {
    let subscriptions = export.subscriptions.into_iter().map(|it| Subscription {
        channel: it.channel.into(),
        subscriber: Entity::new(it.r#type, it.id),
        method: it.method.into(),
        since: 0,
    });
    let subscriptions = subscriptions.collect();
    let journal = export.journal.unwrap_or_default();
    // A later release may write them in another order.
    let state: BTreeMap<Bytes, Bytes> =
        export.state.into_iter().map(|it| (it.key, it.value)).collect();
    let timers = export.timers.into_iter().map(|it| TimerCopy {
        name: it.name.into(),
        due: it.due_unix_ms,
        interval: it.interval_ms,
        payload: it.payload,
    });
    let channels = export.channels.into_iter().map(|it| ChannelCopy {
        name: it.name.into(),
        first: it.first_number,
        start: it.start,
        items: it.items.into_iter().map(|item| (item.unix_ms, item.data)).collect(),
    });
    let mut copy = EntityCopy {
        state: state.into_iter().collect(),
        timers: timers.collect(),
        journal: JournalCopy {
            first: journal.first_number.max(1),
            start: journal.start,
            events: journal.events,
            snapshot: journal.snapshot.map(|it| (it.through, it.data)),
        },
        channels: channels.collect(),
        remembered: export.remembered,
        expires_at: export.expires_unix_ms,
        schema: export.schema,
        ..EntityCopy::default()
    };
    copy.set_subscriptions(subscriptions)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exports_of_a_known_format_are_read() {
        let export = EntityExport { format: 1, id: "a".into(), ..EntityExport::default() };
        assert_eq!(decode_export(&encode_export(&export)), Ok(export.clone()));
        let later = EntityExport { format: 3, ..export };
        assert!(decode_export(&encode_export(&later)).is_err_and(|why| why.contains("format 3")));
        assert!(decode_export(b"").is_err() && decode_export(b"garbage").is_err());
    }
}
