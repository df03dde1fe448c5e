//! Text of a guest's making, on its way to a log, a terminal or a caller.
//!
//! A line break would forge a line of the node's own log, ESC and CR move or colour what stands on a terminal, and marks
//! of direction show a text in another order than it has. So each of them is written as an escape wherever text leaves.

use std::borrow::Cow;
use std::fmt::Write;

/// Bytes of a failure's or refusal's text. What is beyond is cut.
pub const TEXT_LIMIT: usize = 4 << 10;

/// Whether a character changes how other text is shown: a control character, a line or paragraph separator, a mark of
/// direction, or one that cannot be seen.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'
                | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// The text with every such character as an escape: `\n`, `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_control(c) {
            // Writing to a string cannot fail.
            let _ = match c {
                '\n' | '\r' | '\t' => write!(out, "{}", c.escape_default()),
                c => write!(out, "{}", c.escape_unicode()),
            };
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// The same, but for line breaks: for text of the program's own that may have some.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c != '\n' && is_control(c)) {
        return Cow::Borrowed(text);
    }
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    Cow::Owned(lines.join("\n"))
}

/// Text of several lines in one, printable.
pub fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(printable).collect::<Vec<_>>().join(" | ")
}

/// Text of a guest's making as part of a failure: one printable line, no longer than [`TEXT_LIMIT`].
pub fn sanitized(text: String) -> String {
    // Cut before it is escaped, since it may be as large as a guest's memory, and after, since escapes are longer.
    shortened(one_line(&shortened(text)))
}

/// Cuts a text to its limit, at the beginning of a character, and says how much is gone.
pub fn shortened(mut text: String) -> String {
    if text.len() <= TEXT_LIMIT {
        return text;
    }
    let whole = text.len();
    // Room for what is added.
    text.truncate(text.floor_char_boundary(TEXT_LIMIT - 40));
    let gone = whole - text.len();
    let _ = write!(text, "… ({gone} bytes more)");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidi_characters_are_escaped() {
        assert_eq!(printable("päcked 石 🎉 \\n"), "päcked 石 🎉 \\n");
        assert!(matches!(printable("plain"), Cow::Borrowed(_)));
        assert_eq!(printable("a\nb\rc\td"), "a\\nb\\rc\\td");
        assert_eq!(printable("\x1b[31m\x07\0\x7f\u{9b}"), r"\u{1b}[31m\u{7}\u{0}\u{7f}\u{9b}");
        assert_eq!(
            printable("\u{202e}\u{2066}\u{200f}\u{2028}"),
            r"\u{202e}\u{2066}\u{200f}\u{2028}"
        );
    }

    #[test]
    fn reported_text_is_short_and_printable() {
        let told = sanitized("\u{1b}".repeat(16 << 20));
        assert!(told.len() <= TEXT_LIMIT && !told.contains('\u{1b}'), "{}", told.len());
        assert_eq!(printable_lines("a\nb\x1b\n"), "a\nb\\u{1b}\n");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_boundary() {
        assert_eq!(shortened("ö".repeat(2_048)).len(), TEXT_LIMIT);
        let cut = shortened("ö".repeat(8 << 20));
        assert!(cut.len() <= TEXT_LIMIT, "{}", cut.len());
        assert!(cut.ends_with(" bytes more)"), "{cut}");
    }
}
