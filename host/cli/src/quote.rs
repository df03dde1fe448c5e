//! Quotes words for a shell, so that a printed command can be copied.

/// The word, quoted if a shell would otherwise interpret it.
pub(crate) fn shell_quote(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./:@%+=,".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_argument_is_quoted_only_when_necessary() {
        assert_eq!(shell_quote("counter/alice"), "counter/alice");
        assert_eq!(shell_quote("{\"by\": 3}"), "'{\"by\": 3}'");
        assert_eq!(shell_quote("it's"), r"'it'\''s'");
        assert_eq!(shell_quote(""), "''");
    }
}
