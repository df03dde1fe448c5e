//! Texts that could deceive whoever reads them.

/// A line break followed by a line that looks like the node's, bytes that a terminal interprets, and direction marks.
pub(crate) const CONTROL: &str =
    "a\n2026-01-01T00:00:00Z  INFO forged: all is well\r\u{1b}[2J\u{7}\0\u{9b}\u{202e}\u{2066}z";
