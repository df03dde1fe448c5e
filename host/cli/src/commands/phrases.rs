//! Phrases that several commands print.

pub(super) fn many(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// A key, escaped unless it is safe to print on a terminal: guests choose arbitrary keys.
pub(super) fn shown(key: &str) -> String {
    match key.chars().any(char::is_control) {
        true => key.escape_debug().to_string(),
        false => key.to_owned(),
    }
}
