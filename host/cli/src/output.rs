//! The only place that writes to standard output: results, as tables for people or JSON for programs.

#![allow(
    clippy::print_stdout,
    reason = "only results are written to standard output, and only here"
)]

use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;

use comfy_table::{Table, presets};
use ostraca_wasm::text::{is_control, printable, printable_lines};
use serde_json::Value;

/// Whether errors are coloured: on a terminal, unless NO_COLOR is set.
pub(crate) fn colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty())
}

static LOST: OnceLock<io::Error> = OnceLock::new();

/// The error that kept results from being written, if any. A reader that closed the pipe is not an error.
pub(crate) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        // Keep the first error.
        let _ = LOST.set(error);
    }
}

/// Prints one line and flushes, since a reader may wait for it on a pipe. Escapes parts that a guest wrote.
pub(crate) fn line(text: &str) {
    let text = printable_lines(text);
    let mut out = std::io::stdout().lock();
    note(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// Prints text unchanged.
pub(crate) fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    note(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// Prints bytes unchanged, followed by a newline. On a terminal, escapes what would move or hide other text.
pub(crate) fn bytes(bytes: &[u8]) {
    if std::io::stdout().is_terminal() {
        return line(&String::from_utf8_lossy(bytes));
    }
    let mut out = std::io::stdout().lock();
    note(out.write_all(bytes).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()));
}

/// Prints one JSON value.
pub(crate) fn json(value: &Value) {
    line(&json_printable(&format!("{value:#}")));
}

/// Prints one JSON value on one line, for results that arrive one by one.
pub(crate) fn json_line(value: &Value) {
    line(&json_printable(&value.to_string()));
}

/// Escapes characters that change how a terminal shows text, most of which JSON leaves alone. In JSON, they occur only
/// within strings.
fn json_printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || !is_control(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

/// Prints columns under their headers.
pub(crate) fn table<const N: usize>(headers: [&str; N], rows: Vec<[String; N]>) {
    line(&columns(headers, rows));
}

fn columns<const N: usize>(headers: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = Table::new();
    let rows = rows.iter().map(|row| row.each_ref().map(|cell| printable(cell).into_owned()));
    table.load_preset(presets::NOTHING).set_header(headers).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Prints names and values, one pair per line.
pub(crate) fn pairs(rows: &[(&str, String)]) {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in rows {
        line(&format!("{name:width$}  {}", printable(value)));
    }
}

/// A human-readable duration: its two largest units.
pub(crate) fn span(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let mut rest = ms / 1_000;
    if rest == 0 {
        return format!("{ms} ms");
    }
    let mut parts = Vec::new();
    for (unit, name) in UNITS {
        if rest >= unit || !parts.is_empty() {
            parts.push((rest / unit, name));
            rest %= unit;
        }
    }
    let parts = parts.into_iter().take(2).filter(|(count, _)| *count > 0);
    parts.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(" ")
}

/// A wall-clock time in UTC, in the format usual in logs.
pub(crate) fn wall(ms: u64) -> String {
    let at = std::time::UNIX_EPOCH.checked_add(std::time::Duration::from_millis(ms));
    // Later times are beyond the calendar's range.
    at.filter(|_| ms < 253_402_300_800_000)
        .map_or_else(|| format!("{ms} ms"), |at| humantime::format_rfc3339_seconds(at).to_string())
}

/// A human-readable size.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_shown_in_its_two_largest_units() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (61_500, "1 min 1 s"),
            (3_600_000, "1 h"),
            (3_605_000, "1 h"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(span(ms), text);
        }
    }

    #[test]
    fn a_size_is_shown_in_its_largest_unit() {
        for (bytes, text) in [
            (1_023, "1023 B"),
            (1_536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            ((1 << 30) - 1, "1024.0 MiB"),
            (10 << 30, "10.0 GiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn a_wall_clock_time_is_shown_as_in_logs() {
        assert_eq!(wall(1_700_000_000_999), "2023-11-14T22:13:20Z");
        assert_eq!(wall(u64::MAX), format!("{} ms", u64::MAX));
    }

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let rows = vec![["counter".into(), "1".into()], ["a".into(), "12".into()]];
        assert_eq!(
            columns(["TYPE", "REVISION"], rows),
            "TYPE     REVISION\ncounter  1\na        12"
        );
    }

    #[test]
    fn control_characters_are_escaped_in_tables_and_json() {
        let rows = vec![["a\nb\u{1b}[2J\u{202e}".to_owned()]];
        assert_eq!(columns(["H"], rows), "H\na\\nb\\u{1b}[2J\\u{202e}");
        let value = serde_json::json!({ "k": "\u{1b}\u{9b}\u{202e}\u{e0041}\n" });
        let text = json_printable(&format!("{value:#}"));
        assert!(text.chars().all(|c| c == '\n' || !is_control(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
    }
}
