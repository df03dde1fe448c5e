//! JSON Schemas of methods: shown as signatures, compared with arguments before these are sent, and written as typed
//! calls in programming languages.
//!
//! The texts come from components that anyone may have deployed. So nothing here follows references to other documents,
//! runs regular expressions, or works without a limit, which is why no library is used. Only the keywords are known that
//! describe the shape of a value; others are ignored, since the entity itself checks its arguments anyway.

mod check;
pub mod client;
mod json;
mod signature;

pub use check::{Mismatch, check_body};
pub use signature::signature;

use json::Json;

/// Maximum number of schemas nested in each other, or behind each other by reference, that are followed.
const MAX_DEPTH: usize = 64;

/// Follows `$ref`, if it leads to another part of the same document.
fn resolve<'s>(root: &'s Json, schema: &'s Json) -> Option<&'s Json> {
    let pointer = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
    let mut at = root;
    for part in pointer.split('/').skip(1) {
        at = at.get(&part.replace("~1", "/").replace("~0", "~"))?;
    }
    Some(at)
}
