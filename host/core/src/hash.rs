//! Maps an entity to its shard, which is the same on every node, forever (K8).

use std::io::Cursor;

use crate::ids::ShardId;

/// The shard of a shard key: `murmur3_x86_32(key, seed 0) % shard_count + 1` (S6, M1).
///
/// The entity type is not hashed: entities of different types with the same key share a shard. A `shard_count` of zero
/// counts as one.
#[must_use]
pub fn shard_of(key: &str, shard_count: u32) -> ShardId {
    // Reading from memory cannot fail; zero would only select another fixed shard.
    let hash = murmur3::murmur3_32(&mut Cursor::new(key.as_bytes()), 0).unwrap_or(0);
    ShardId(hash % shard_count.max(1) + 1)
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
