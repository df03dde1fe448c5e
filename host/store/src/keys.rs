//! Keys on disk: `namespace · pool · shard · kind · entity type · entity id · …`, in an order that suits scans.
//!
//! Names are escaped and terminated (`00` becomes `00 ff`, the end is `00 00`), numbers are big-endian, and a state
//! key comes last and unescaped. So comparing two keys bytewise compares their parts one by one. The records of one
//! shard, of one kind, and of one entity are each contiguous, under a prefix that no key of another shard, kind or
//! entity starts with. A claim covers exactly the keys that start with its shard's prefix (R23).

use std::sync::Arc;

use bytes::Bytes;
use ostraca_core::ids::{Entity, ScopedSessionId, ShardId, ShardPath};
use ostraca_core::records::RecordKey;

use crate::StoreError;
use crate::record::RecordKind;

/// The longest key that a backend must accept, in bytes, including escapes. It leaves at least 300 bytes for a
/// state key, even with an entity id of 512 bytes (less if it contains NUL bytes, which are escaped). The limit
/// exists because backends keep many keys in one page.
pub const MAX_KEY_BYTES: usize = 960;

/// The prefix of every key of a shard, and of no other key.
#[must_use]
pub fn shard_prefix(shard: &ShardPath) -> Vec<u8> {
    let mut key = Vec::with_capacity(96);
    push_name(&mut key, &shard.namespace);
    push_name(&mut key, &shard.pool);
    key.extend_from_slice(&shard.shard.0.to_be_bytes());
    key
}

/// The prefix of every key of one kind in a shard.
#[must_use]
pub fn kind_prefix(of: &ShardPath, kind: RecordKind) -> Vec<u8> {
    let mut key = shard_prefix(of);
    key.push(kind as u8);
    key
}

/// The key of a shard's claim.
#[must_use]
pub fn claim(of: &ShardPath) -> Vec<u8> {
    kind_prefix(of, RecordKind::Claim)
}

/// The prefix of every key of an entity's records of one kind.
#[must_use]
pub fn entity_prefix(of: &ShardPath, kind: RecordKind, entity: &Entity) -> Vec<u8> {
    let mut key = kind_prefix(of, kind);
    push_name(&mut key, &entity.entity_type);
    push_name(&mut key, &entity.id);
    key
}

/// The key of an entity's head.
#[must_use]
pub fn head(of: &ShardPath, entity: &Entity) -> Vec<u8> {
    entity_prefix(of, RecordKind::Head, entity)
}

/// The key and the kind of a record outside the head.
#[must_use]
pub fn record_key(of: &ShardPath, entity: &Entity, record: &RecordKey) -> (Vec<u8>, RecordKind) {
    let (kind, last) = match record {
        RecordKey::State(key) => (RecordKind::State, &key[..]),
        RecordKey::Lane(session) => (RecordKind::Lane, &session.0[..]),
        RecordKey::Timer { due, name } => {
            return (timer(of, *due, entity, name), RecordKind::Timer);
        }
        RecordKey::Outbox { target, number } => {
            return (outbox(of, entity, target, *number), RecordKind::Outbox);
        }
        RecordKey::DeadLetter { number } => {
            return (dead_letter(of, entity, *number), RecordKind::DeadLetter);
        }
        RecordKey::Journal { number } => {
            return (journal(of, entity, *number), RecordKind::Journal);
        }
        RecordKey::Remembered => return (remembered(of, entity), RecordKind::Remembered),
        RecordKey::ChannelItem { channel, number } => {
            return (channel_item(of, entity, channel, *number), RecordKind::ChannelItem);
        }
    };
    let mut key = entity_prefix(of, kind, entity);
    key.extend_from_slice(last);
    (key, kind)
}

/// The key of a timer, or of a wake-up if `name` is empty. Both are ordered by `due`, in milliseconds since the Unix
/// epoch (UTC); timers are stored under [`OWN_TIMERS`](ostraca_core::records::OWN_TIMERS).
#[must_use]
pub fn timer(of: &ShardPath, due: u64, entity: &Entity, name: &str) -> Vec<u8> {
    let mut key = timers_of(of, due, entity);
    push_name(&mut key, name);
    key
}

/// The prefix of the keys of an entity's timers and wake-up that are stored under one due time.
#[must_use]
pub fn timers_of(of: &ShardPath, due: u64, entity: &Entity) -> Vec<u8> {
    let mut key = kind_prefix(of, RecordKind::Timer);
    key.extend_from_slice(&due.to_be_bytes());
    push_name(&mut key, &entity.entity_type);
    push_name(&mut key, &entity.id);
    key
}

/// The part of a wake-up's key that follows its kind's prefix.
#[must_use]
pub fn wake_key(due: u64, entity: &Entity) -> Vec<u8> {
    let mut key = due.to_be_bytes().to_vec();
    push_name(&mut key, &entity.entity_type);
    push_name(&mut key, &entity.id);
    push_name(&mut key, "");
    key
}

/// Parses the part of a wake-up's key that follows its kind's prefix.
///
/// # Errors
/// [`StoreError::Corrupt`] if the bytes are not a wake-up's.
pub fn parse_wake(rest: &[u8]) -> Result<(u64, Entity), StoreError> {
    let corrupt = || StoreError::Corrupt("key does not hold a wake-up".into());
    let (due, rest) = rest.split_first_chunk().ok_or_else(corrupt)?;
    let (entity, name) = parse_entity(rest)?;
    match name {
        [0, 0] => Ok((u64::from_be_bytes(*due), entity)),
        _ => Err(corrupt()),
    }
}

/// The key of a tell waiting to be sent. The tells from one entity to another are ordered by number.
#[must_use]
pub fn outbox(of: &ShardPath, sender: &Entity, target: &Entity, number: u64) -> Vec<u8> {
    let mut key = entity_prefix(of, RecordKind::Outbox, sender);
    push_name(&mut key, &target.entity_type);
    push_name(&mut key, &target.id);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The number at the end of the key of a tell, a dead letter, an event or an item.
///
/// # Errors
/// [`StoreError::Corrupt`] if the key is too short.
pub fn last_number(key: &[u8]) -> Result<u64, StoreError> {
    let number = key.last_chunk().ok_or_else(|| StoreError::Corrupt("key has no number".into()))?;
    Ok(u64::from_be_bytes(*number))
}

/// The key of an event in an entity's journal, or of the journal's snapshot.
#[must_use]
pub fn journal(of: &ShardPath, entity: &Entity, number: u64) -> Vec<u8> {
    let mut key = entity_prefix(of, RecordKind::Journal, entity);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The key that marks a remembered entity.
#[must_use]
pub fn remembered(of: &ShardPath, entity: &Entity) -> Vec<u8> {
    entity_prefix(of, RecordKind::Remembered, entity)
}

/// The prefix of the keys of a channel's kept items.
#[must_use]
pub fn channel_prefix(of: &ShardPath, entity: &Entity, channel: &str) -> Vec<u8> {
    let mut key = entity_prefix(of, RecordKind::ChannelItem, entity);
    push_name(&mut key, channel);
    key
}

/// The key of a kept item of a channel.
#[must_use]
pub fn channel_item(of: &ShardPath, entity: &Entity, channel: &str, number: u64) -> Vec<u8> {
    let mut key = channel_prefix(of, entity, channel);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The key of a dead letter.
#[must_use]
pub fn dead_letter(of: &ShardPath, sender: &Entity, number: u64) -> Vec<u8> {
    let mut key = entity_prefix(of, RecordKind::DeadLetter, sender);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The part of a key that follows its kind's prefix and names the entity.
#[must_use]
pub fn entity_key(entity: &Entity) -> Vec<u8> {
    let mut key = Vec::new();
    push_name(&mut key, &entity.entity_type);
    push_name(&mut key, &entity.id);
    key
}

/// Parses the entity at the start of `rest`, which is a key without its kind's prefix. Also returns the bytes after
/// the entity.
///
/// # Errors
/// [`StoreError::Corrupt`] if the bytes are not an entity.
pub fn parse_entity(rest: &[u8]) -> Result<(Entity, &[u8]), StoreError> {
    let (kind, rest) = parse_name(rest)?;
    let (id, rest) = parse_name(rest)?;
    Ok((Entity { entity_type: kind, id }, rest))
}

/// Parses the shard and the kind at the start of a key. Also returns the bytes after them.
///
/// # Errors
/// [`StoreError::Corrupt`] if the bytes are not a key.
pub fn parse_kind(key: &[u8]) -> Result<(ShardPath, RecordKind, &[u8]), StoreError> {
    let corrupt = || StoreError::Corrupt("key does not hold a shard and a kind".into());
    let (namespace, rest) = parse_name(key)?;
    let (pool, rest) = parse_name(rest)?;
    let (shard, rest) = rest.split_first_chunk().ok_or_else(corrupt)?;
    let (kind, rest) = rest.split_first().ok_or_else(corrupt)?;
    let kind = RecordKind::from_number(*kind).ok_or_else(corrupt)?;
    let shard = ShardId(u32::from_be_bytes(*shard));
    Ok((ShardPath { namespace, pool, shard }, kind, rest))
}

/// Parses the part of a key that follows its kind's prefix, the inverse of [`record_key`].
///
/// # Errors
/// [`StoreError::Corrupt`] if the bytes are not the key of a record outside the head.
pub fn parse_record(kind: RecordKind, rest: &[u8]) -> Result<(Entity, RecordKey), StoreError> {
    let corrupt = || StoreError::Corrupt(format!("key is not that of a {kind:?} record"));
    let number = |rest: &[u8]| rest.try_into().map(u64::from_be_bytes).map_err(|_| corrupt());
    if kind == RecordKind::Timer {
        let (due, rest) = rest.split_first_chunk().ok_or_else(corrupt)?;
        let (entity, rest) = parse_entity(rest)?;
        let (name, rest) = parse_name(rest)?;
        let key = RecordKey::Timer { due: u64::from_be_bytes(*due), name };
        return if rest.is_empty() { Ok((entity, key)) } else { Err(corrupt()) };
    }
    let (entity, rest) = parse_entity(rest)?;
    let key = match kind {
        RecordKind::State => RecordKey::State(Bytes::copy_from_slice(rest)),
        RecordKind::Lane => {
            RecordKey::Lane(ScopedSessionId(rest.try_into().map_err(|_| corrupt())?))
        }
        RecordKind::Outbox => {
            let (target, rest) = parse_entity(rest)?;
            RecordKey::Outbox { target, number: number(rest)? }
        }
        RecordKind::DeadLetter => RecordKey::DeadLetter { number: number(rest)? },
        RecordKind::Journal => RecordKey::Journal { number: number(rest)? },
        RecordKind::Remembered if rest.is_empty() => RecordKey::Remembered,
        RecordKind::ChannelItem => {
            let (channel, rest) = parse_name(rest)?;
            RecordKey::ChannelItem { channel, number: number(rest)? }
        }
        _ => return Err(corrupt()),
    };
    Ok((entity, key))
}

fn push_name(key: &mut Vec<u8>, name: &str) {
    for part in name.as_bytes().split_inclusive(|byte| *byte == 0) {
        key.extend_from_slice(part);
        if part.last() == Some(&0) {
            key.push(0xff);
        }
    }
    key.extend_from_slice(&[0, 0]);
}

fn parse_name(bytes: &[u8]) -> Result<(Arc<str>, &[u8]), StoreError> {
    let corrupt = || StoreError::Corrupt("key does not hold a valid name".into());
    let mut name = Vec::new();
    let mut rest = bytes;
    loop {
        let zero = rest.iter().position(|byte| *byte == 0).ok_or_else(corrupt)?;
        name.extend_from_slice(&rest[..zero]);
        let mark = rest.get(zero + 1).ok_or_else(corrupt)?;
        rest = &rest[zero + 2..];
        match mark {
            0 => break,
            0xff => name.push(0),
            _ => return Err(corrupt()),
        }
    }
    let name = String::from_utf8(name).map_err(|_| corrupt())?;
    Ok((name.into(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard_key(namespace: &str, pool: &str, number: u32) -> ShardPath {
        ShardPath { namespace: namespace.into(), pool: pool.into(), shard: ShardId(number) }
    }

    const NAMES: [&str; 9] = ["", "\0", "\0\0", "\0a", "a", "a\0", "a\0b", "a\u{1}", "b"];

    #[test]
    fn keys_compare_as_their_parts_do() {
        let one = shard_key("n", "p", 1);
        let mut parts = Vec::new();
        for kind in NAMES {
            for id in NAMES {
                for state in [&b""[..], b"\0", b"a", b"\xff"] {
                    parts.push((kind, id, state));
                }
            }
        }
        let key = |(kind, id, state): &(&str, &str, &'static [u8])| {
            record_key(&one, &Entity::new(*kind, *id), &RecordKey::State(Bytes::from_static(state)))
                .0
        };
        for a in &parts {
            for b in &parts {
                assert_eq!(a.cmp(b), key(a).cmp(&key(b)), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_prefix_covers_its_own_shard_or_entity_and_no_other() {
        let mut shards = Vec::new();
        for namespace in NAMES {
            for pool in NAMES {
                shards.push(shard_key(namespace, pool, 1));
                shards.push(shard_key(namespace, pool, 0x0100_0000));
            }
        }
        for a in &shards {
            for b in &shards {
                assert_eq!(shard_prefix(a).starts_with(&shard_prefix(b)), a == b);
            }
        }
        let entities: Vec<_> = NAMES.iter().map(|id| Entity::new("t", *id)).collect();
        for a in &entities {
            for b in &entities {
                let prefix = entity_prefix(&shards[0], RecordKind::State, b);
                let key =
                    record_key(&shards[0], a, &RecordKey::State(Bytes::from_static(b"\0x"))).0;
                assert_eq!(key.starts_with(&prefix), a == b);
            }
        }
    }

    #[test]
    fn an_entity_is_parsed_back_from_its_key() {
        let one = shard_key("n", "p", 7);
        for kind in NAMES {
            for id in NAMES {
                let entity = Entity::new(kind, id);
                let (key, _) =
                    record_key(&one, &entity, &RecordKey::Lane(ScopedSessionId([9; 16])));
                let rest = &key[kind_prefix(&one, RecordKind::Lane).len()..];
                assert_eq!(parse_entity(rest).unwrap(), (entity, &[9u8; 16][..]));
            }
        }
    }

    #[test]
    fn a_record_is_parsed_back_from_its_key() {
        let one = shard_key("n\0", "p", 7);
        for name in NAMES {
            let (entity, target) = (Entity::new("t", name), Entity::new(name, "u"));
            for key in [
                RecordKey::State(Bytes::copy_from_slice(name.as_bytes())),
                RecordKey::Lane(ScopedSessionId([9; 16])),
                RecordKey::Timer { due: 0, name: name.into() },
                RecordKey::Timer { due: 258, name: "".into() },
                RecordKey::Outbox { target, number: 1 << 40 },
                RecordKey::DeadLetter { number: 3 },
                RecordKey::Journal { number: 0 },
                RecordKey::Remembered,
                RecordKey::ChannelItem { channel: name.into(), number: 4 },
            ] {
                let (full, kind) = record_key(&one, &entity, &key);
                let (shard, found, rest) = parse_kind(&full).unwrap();
                assert_eq!((&shard, found), (&one, kind));
                assert_eq!(parse_record(kind, rest).unwrap(), (entity.clone(), key.clone()));
                let longer = [rest, b"x"].concat();
                if !matches!(key, RecordKey::State(_)) {
                    assert!(parse_record(kind, &longer).is_err(), "{key:?}");
                }
            }
        }
        for bytes in
            [&b""[..], b"n\0\0p\0\0\0\0\0", b"n\0\0p\0\0\0\0\0\x01", b"n\0\0p\0\0\0\0\0\x01\xff"]
        {
            assert!(matches!(parse_kind(bytes), Err(StoreError::Corrupt(_))), "{bytes:?}");
        }
    }

    #[test]
    fn timers_sort_by_due_time_and_outboxes_by_number() {
        let one = shard_key("n", "p", 1);
        let (a, b) = (Entity::new("t", "a"), Entity::new("t", "b"));
        assert!(timer(&one, 255, &b, "z") < timer(&one, 256, &a, "a"), "across all entities");
        assert!(timer(&one, 256, &a, "a") < timer(&one, 256, &a, "b"));
        assert!(timer(&one, u64::MAX, &b, "z") < timer(&shard_key("n", "p", 2), 0, &a, "a"));
        let prefix = entity_prefix(&one, RecordKind::Outbox, &a);
        assert!(outbox(&one, &a, &b, 255) < outbox(&one, &a, &b, 256));
        assert!(outbox(&one, &a, &b, 9).starts_with(&prefix));
        assert!(!outbox(&one, &b, &a, 9).starts_with(&prefix));
        assert!(journal(&one, &a, 255) < journal(&one, &a, 256));
        assert!(dead_letter(&one, &a, 255) < dead_letter(&one, &a, 256));
        assert!(channel_item(&one, &a, "c", 255) < channel_item(&one, &a, "c", 256));
        assert!(!channel_item(&one, &a, "cd", 1).starts_with(&channel_prefix(&one, &a, "c")));
    }

    #[test]
    fn the_layouts_of_later_kinds_do_not_change() {
        let (one, a, b) = (shard_key("n", "p", 1), Entity::new("t", "a"), Entity::new("u", "b"));
        let behind = |rest: &[u8]| [b"n\0\0p\0\0\0\0\0\x01", rest].concat();
        let due = behind(b"\x05\0\0\0\0\0\0\x01\x02t\0\0a\0\0wake\0\0");
        assert_eq!(timer(&one, 258, &a, "wake"), due);
        let waiting = behind(b"\x06t\0\0a\0\0u\0\0b\0\0\0\0\0\0\0\0\x01\x02");
        assert_eq!(outbox(&one, &a, &b, 258), waiting);
        assert_eq!(journal(&one, &a, 2), behind(b"\x07t\0\0a\0\0\0\0\0\0\0\0\0\x02"));
        assert_eq!(remembered(&one, &a), behind(b"\x08t\0\0a\0\0"));
        assert_eq!(dead_letter(&one, &a, 2), behind(b"\x09t\0\0a\0\0\0\0\0\0\0\0\0\x02"));
        let item = behind(b"\x0bt\0\0a\0\0news\0\0\0\0\0\0\0\0\0\x02");
        assert_eq!(channel_item(&one, &a, "news", 2), item);
    }

    #[test]
    fn bytes_that_are_not_a_key_are_corrupt() {
        for bytes in [&b""[..], b"a", b"a\0", b"a\0\x01b\0\0", b"\xfe\0\0a\0\0", b"a\0\0"] {
            assert!(matches!(parse_entity(bytes), Err(StoreError::Corrupt(_))), "{bytes:?}");
        }
    }

    #[test]
    fn the_layout_of_keys_does_not_change() {
        let key = record_key(
            &shard_key("default", "p\0", 258),
            &Entity::new("counter", "alice"),
            &RecordKey::State(Bytes::from_static(b"k\0")),
        )
        .0;
        assert_eq!(key, b"default\0\0p\0\xff\0\0\0\0\x01\x02\x03counter\0\0alice\0\0k\0");
    }
}
