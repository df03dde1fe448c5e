//! Words for a shell, so that a printed command can be typed as it is.

/// The word, in quotes if a shell would read it otherwise.
pub(crate) fn word(text: &str) -> String {
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
    fn a_word_is_quoted_only_if_it_must_be() {
        assert_eq!(word("counter/alice"), "counter/alice");
        assert_eq!(word("{\"by\": 3}"), "'{\"by\": 3}'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word(""), "''");
    }
}
