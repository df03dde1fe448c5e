//! Makes text from guests safe for a log, a terminal or a caller.
//!
//! A line break could forge a line of the node's own log, ESC and CR move or colour text on a terminal, and direction
//! marks display text in an order other than that of its characters. So each of them is written as an escape sequence
//! wherever such text is output.

use std::borrow::Cow;
use std::fmt::Write;

/// Maximum length in bytes of the text of a failure or refusal; the rest is cut.
pub const TEXT_LIMIT: usize = 4 << 10;

/// Whether a character is invisible or changes how other text is shown: a control character, a line or paragraph
/// separator, a direction mark, or another character that cannot be seen.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'
                | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns the text with every character that [`is_control`] matches escaped: `\n`, `\u{1b}`.
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

/// Like [`printable`], but keeps line breaks: for the program's own text, which may have several lines.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c != '\n' && is_control(c)) {
        return Cow::Borrowed(text);
    }
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    Cow::Owned(lines.join("\n"))
}

/// Joins the lines of a text into one printable line.
pub fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(printable).collect::<Vec<_>>().join(" | ")
}

/// Prepares text from a guest for a failure: one printable line, no longer than [`TEXT_LIMIT`].
pub fn sanitized(text: String) -> String {
    // Cut before escaping, since the text may be as large as a guest's memory, and after, since escapes are longer.
    shortened(one_line(&shortened(text)))
}

/// Cuts a text to [`TEXT_LIMIT`] at a character boundary, and appends how many bytes were cut.
pub fn shortened(mut text: String) -> String {
    if text.len() <= TEXT_LIMIT {
        return text;
    }
    let whole = text.len();
    // Leaves room for the text that is appended.
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
        let text = sanitized("\u{1b}".repeat(16 << 20));
        assert!(text.len() <= TEXT_LIMIT && !text.contains('\u{1b}'), "{}", text.len());
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
