//! The one place that writes to standard output: results, as tables for people or JSON for programs.

#![allow(clippy::print_stdout, reason = "this is where results go, and nothing else goes")]

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;

use comfy_table::{Table, presets};
use serde_json::Value;

/// Whether errors are coloured: on a terminal, unless NO_COLOR says otherwise.
pub(crate) fn colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty())
}

static LOST: OnceLock<io::Error> = OnceLock::new();

/// Why results could not be written, if so. A reader that went away wanted no more, which is no error.
pub(crate) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        // The first is the one to tell.
        let _ = LOST.set(error);
    }
}

/// One line, at once: whoever waits for it may be reading a pipe.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    note(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// Text as it is.
pub(crate) fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    note(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// Bytes as they are, and the end of a line.
pub(crate) fn bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    note(out.write_all(bytes).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()));
}

/// One JSON value.
pub(crate) fn json(value: &Value) {
    line(&format!("{value:#}"));
}

/// Columns under their headers.
pub(crate) fn table<const N: usize>(headers: [&str; N], rows: Vec<[String; N]>) {
    line(&columns(headers, rows));
}

fn columns<const N: usize>(headers: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(headers).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Names and values, one a line.
pub(crate) fn pairs(rows: &[(&str, String)]) {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in rows {
        line(&format!("{name:width$}  {value}"));
    }
}

/// Bytes, as people say them.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_end_without_spaces() {
        let rows = vec![["counter".into(), "1".into()], ["a".into(), "12".into()]];
        assert_eq!(
            columns(["TYPE", "REVISION"], rows),
            "TYPE     REVISION\ncounter  1\na        12"
        );
    }
}
