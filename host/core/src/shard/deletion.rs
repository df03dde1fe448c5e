//! Deletions: what an operator sends (E17).

/// The method of the command with which an operator deletes an entity. No guest can declare it. The command has no
/// body, and an empty result.
pub const DELETE: &str = "\u{1}delete-entity";
