//! Maps an entity to its shard, which is the same on every node, forever (K8).

use std::fmt;
use std::io::Cursor;

use crate::ids::ShardId;

/// Hashes that a pool can have (M1). The hash of a pool never changes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum HashFunction {
    /// `murmur3_x86_32` with seed 0, of the key's UTF-8 bytes; the default.
    #[default]
    Murmur3,
    /// `fnv1a_32`, of the key's UTF-8 bytes.
    Fnv1a,
    /// `java_string`: the absolute value of Java's and Scala's `String.hashCode`, so that an id gets the number that
    /// Akka's `HashCodeMessageExtractor` (K7) and Shardcake (S6) give it.
    JavaString,
}

impl HashFunction {
    /// All hashes.
    pub const ALL: [Self; 3] = [Self::Murmur3, Self::Fnv1a, Self::JavaString];

    /// Its name in rows and commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Murmur3 => "murmur3_x86_32",
            Self::Fnv1a => "fnv1a_32",
            Self::JavaString => "java_string",
        }
    }

    /// The hash with this name.
    ///
    /// # Errors
    /// [`UnknownHash`], which lists the known names.
    pub fn from_name(name: &str) -> Result<Self, UnknownHash> {
        let named = Self::ALL.into_iter().find(|hash| hash.name() == name);
        named.ok_or_else(|| UnknownHash { name: name.into() })
    }

    /// The index, below `shards`, of a shard key's shard. No shards count as one.
    #[must_use]
    pub fn index(self, key: &str, shards: u32) -> u32 {
        let shards = shards.max(1);
        match self {
            // Reading from memory cannot fail; zero would only select another fixed shard.
            Self::Murmur3 => murmur3::murmur3_32(&mut Cursor::new(key), 0).unwrap_or(0) % shards,
            Self::Fnv1a => {
                let step = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
                key.bytes().fold(0x811c_9dc5, step) % shards
            }
            Self::JavaString => {
                let step = |hash: i32, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
                let hash = key.encode_utf16().fold(0, step);
                // Of the remainder, as both do: the absolute value of the least number would not be one.
                (i64::from(hash) % i64::from(shards)).unsigned_abs() as u32
            }
        }
    }
}

/// No hash has that name. Not retryable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownHash {
    /// The requested name.
    pub name: String,
}

impl fmt::Display for UnknownHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = HashFunction::ALL.map(HashFunction::name).join("`, `");
        write!(f, "`{}` is not a hash; use one of `{names}`", self.name)
    }
}

impl std::error::Error for UnknownHash {}

/// The shard of a shard key: `murmur3_x86_32(key, seed 0) % shard_count + 1` (S6, M1).
///
/// The entity type is not hashed: entities of different types with the same key share a shard. A `shard_count` of zero
/// counts as one.
#[must_use]
pub fn shard_of(key: &str, shard_count: u32) -> ShardId {
    ShardId(HashFunction::Murmur3.index(key, shard_count) + 1)
}

/// Which part of an id is hashed, according to the manifest's `shard-key` (K6, E2).
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ShardKeyRule {
    /// The whole id.
    #[default]
    Id,
    /// The id up to the first occurrence of this separator, or the whole id if it does not contain the separator.
    Until(String),
}

impl std::fmt::Display for ShardKeyRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id => f.write_str("id"),
            Self::Until(separator) => write!(f, "until:{separator}"),
        }
    }
}

impl ShardKeyRule {
    /// Parses `id` or `until:SEPARATOR`.
    ///
    /// # Errors
    /// For any other text, a message that lists what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix("until:") {
            Some("") => Err("`until:` needs a separator, as in `until:/`".into()),
            Some(separator) => Ok(Self::Until(separator.into())),
            None if text == "id" => Ok(Self::Id),
            None => Err(format!("`{text}` is not a shard key; use `id` or `until:SEPARATOR`")),
        }
    }

    /// The part of `id` that is hashed.
    #[must_use]
    pub fn shard_key<'a>(&self, id: &'a str) -> &'a str {
        match self {
            Self::Id => id,
            Self::Until(separator) => id.split_once(separator.as_str()).map_or(id, |(key, _)| key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_of_an_id_matches_the_golden_vectors() {
        // murmur3_x86_32 with seed 0, as published with the algorithm.
        for (id, hash) in [("", 0_u32), ("test", 0xba6b_d213), ("Hello, world!", 0xc036_3e43)] {
            assert_eq!(shard_of(id, 1024), ShardId(hash % 1024 + 1), "{id}");
        }
        assert_eq!(
            shard_of("The quick brown fox jumps over the lazy dog", u32::MAX).0,
            0x2e4f_f723 + 1
        );
    }

    #[test]
    fn m1_hashes_match_their_definitions() {
        let large = |hash: HashFunction, key| hash.index(key, u32::MAX);
        // The vectors of FNV's authors.
        assert_eq!(large(HashFunction::Fnv1a, ""), 0x811c_9dc5);
        assert_eq!(large(HashFunction::Fnv1a, "foobar"), 0xbf9c_f968);
        // What Java prints: "alice".hashCode(), "polygenelubricants".hashCode() = Integer.MIN_VALUE.
        assert_eq!(HashFunction::JavaString.index("alice", 1 << 30), 92_903_040);
        assert_eq!(HashFunction::JavaString.index("polygenelubricants", 7), 2);
        assert_eq!(HashFunction::JavaString.index("\u{1f600}", 1 << 30), 1_772_899);
        for hash in HashFunction::ALL {
            assert_eq!(HashFunction::from_name(hash.name()), Ok(hash));
            assert_eq!(hash.index("alice", 0), 0);
        }
        let unknown = HashFunction::from_name("md5").expect_err("no hash").to_string();
        assert!(unknown.contains("`fnv1a_32`"), "{unknown}");
    }

    #[test]
    fn shard_is_between_1_and_the_count() {
        for i in 0..10_000 {
            let shard = shard_of(&format!("entity-{i}"), 7).0;
            assert!((1..=7).contains(&shard));
        }
    }

    #[test]
    fn shard_key_until_a_separator_keeps_related_ids_together() {
        let rule = ShardKeyRule::parse("until:/").expect("a rule");
        assert_eq!(rule.shard_key("cart/7"), rule.shard_key("cart/8"));
        assert_eq!(rule.shard_key("alone"), "alone");
        assert!(ShardKeyRule::parse("until:").is_err());
        assert!(ShardKeyRule::parse("ids").is_err());
    }

    #[test]
    fn a_shard_key_rule_round_trips_through_its_text() {
        for (text, rule) in [("id", ShardKeyRule::Id), ("until:/", ShardKeyRule::Until("/".into()))]
        {
            assert_eq!(ShardKeyRule::parse(text), Ok(rule.clone()));
            assert_eq!(rule.to_string(), text);
        }
        assert_eq!(ShardKeyRule::Id.shard_key("cart/7"), "cart/7");
    }
}
