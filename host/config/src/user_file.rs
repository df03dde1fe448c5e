//! Parses files that people write (configurations, manifests, policies) as TOML, with errors that mark the line.
//!
//! serde reports the span of what it rejects. Later checks have no span, so `SourceText::at` looks the key up
//! again. Confusing at first: an error's `Display` names the line too, because the error also travels to
//! clients as plain text, without a snippet.

use std::fmt;
use std::ops::Range;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};
use ostraca_codes::Code;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

pub mod units;

/// What is wrong with a file that a person wrote, and where. Deterministic: retrying does not help.
#[derive(Clone, Debug)]
pub struct UserFileError(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    code: Code,
    text: String,
    help: Option<String>,
    source: NamedSource<String>,
    span: Option<Range<usize>>,
}

impl UserFileError {
    /// The stable code: `invalid-config`, `invalid-manifest`, `invalid-policy` or `not-supported-yet`.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What to do, if known.
    #[must_use]
    pub fn help_text(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// The marked line, from 1.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        let before = self.0.source.inner().get(..self.0.span.as_ref()?.start)?;
        Some(before.matches('\n').count() + 1)
    }

    /// The error for a file that cannot be read at all.
    pub(crate) fn unreadable(code: Code, name: &str, error: &std::io::Error) -> Self {
        let help = match error.kind() {
            std::io::ErrorKind::NotFound => Some("check the path".to_owned()),
            _ => None,
        };
        let (text, source) =
            (format!("cannot read it: {error}"), NamedSource::new(name, String::new()));
        Self(Box::new(Inner { code, text, help, source, span: None }))
    }
}

impl fmt::Display for UserFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.source.name())?;
        if let Some(line) = self.line() {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.0.text)
    }
}

impl std::error::Error for UserFileError {}

impl Diagnostic for UserFileError {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.0.code))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.0.help.as_ref().map(|help| Box::new(help) as _)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.0.span.as_ref().map(|_| &self.0.source as _)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.0.span.clone()?;
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(Some("here".into()), span))))
    }
}

/// The text of a file, with the name that its errors show.
#[derive(Clone, Copy)]
pub(crate) struct SourceText<'a> {
    pub(crate) code: Code,
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// Former names of keys and sections, each with its current one, as `section.key`.
    pub(crate) renamed: &'static [(&'static str, &'static str)],
}

impl SourceText<'_> {
    /// Parses the text as TOML.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, UserFileError> {
        toml::from_str(self.text).map_err(|error| {
            if let Some(renamed) = self.renamed_key(error.message()) {
                return renamed;
            }
            let (text, help) = explain(error.message());
            self.error(self.code, error.span(), text, help)
        })
    }

    /// The error for a key that had another name in an earlier version.
    fn renamed_key(&self, message: &str) -> Option<UserFileError> {
        message.strip_prefix("unknown field")?;
        self.renamed.iter().find_map(|(old, new)| {
            let path: Vec<_> = old.split('.').collect();
            let span = locate(self.text, &path)?;
            let help = format!("write `{new}`");
            Some(self.error(self.code, Some(span), format!("`{old}` was renamed"), Some(help)))
        })
    }

    /// An error at a key's value, or at the key's section if the key is missing.
    pub(crate) fn at(&self, path: &[&str], text: String, help: Option<String>) -> UserFileError {
        self.at_with(self.code, path, text, help)
    }

    /// Like [`SourceText::at`], with another code.
    pub(crate) fn at_with(
        &self,
        code: Code,
        path: &[&str],
        text: String,
        help: Option<String>,
    ) -> UserFileError {
        self.error(code, locate(self.text, path), text, help)
    }

    fn error(
        &self,
        code: Code,
        span: Option<Range<usize>>,
        text: String,
        help: Option<String>,
    ) -> UserFileError {
        let span = span.filter(|span| span.end <= self.text.len());
        let source = NamedSource::new(self.name, self.text.to_owned());
        UserFileError(Box::new(Inner { code, text, help, source, span }))
    }
}

/// The known name that is most similar to a mistyped one.
#[must_use]
pub fn closest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, best) = known
        .into_iter()
        .map(|it| (strsim::damerau_levenshtein(name, it), it))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + name.chars().count() / 4).then_some(best)
}

/// Rewrites serde's message in this project's terms, and suggests the intended key.
fn explain(message: &str) -> (String, Option<String>) {
    let mut quoted = message.split('`').skip(1).step_by(2);
    if message.starts_with("unknown field")
        && let Some(unknown) = quoted.next()
    {
        let known: Vec<&str> = quoted.collect();
        let help = match closest_name(unknown, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known here: {}", known.join(", ")),
        };
        return (format!("unknown key `{unknown}`"), Some(help));
    }
    if message.starts_with("unknown variant")
        && let Some(unknown) = quoted.next()
    {
        let known: Vec<&str> = quoted.collect();
        let help = match closest_name(unknown, known.iter().copied()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => format!("possible here: {}", known.join(", ")),
        };
        return (format!("\"{unknown}\" is not allowed here"), Some(help));
    }
    if message.trim_end() == "wanted string or table" {
        return ("this must be a name in quotes".into(), None);
    }
    if message == "invalid socket address syntax" {
        let help = "write an IP address and a port, as in \"127.0.0.1:7411\"";
        return ("this is not an address to listen on".into(), Some(help.into()));
    }
    // serde uses one of these messages for values and the other for keys.
    if message.starts_with("cannot recurse further") || message.starts_with("recursion limit") {
        return ("nested too deeply".into(), None);
    }
    let mut text = message.trim_end().replace('\n', "; ");
    if let Some(before) = text.strip_suffix("expected a sequence") {
        text = format!("{before}expected a list in brackets, as in [\"…\"]");
    }
    for integer in ["u16", "u32", "u64", "usize"] {
        if let Some(before) = text.strip_suffix(&format!("expected {integer}")) {
            text = format!("{before}expected a whole number");
        }
    }
    (text, None)
}

/// The span of a key's value. A number in the path is an index into a list.
fn locate(text: &str, path: &[&str]) -> Option<Range<usize>> {
    let document = DeTable::parse(text).ok()?;
    let (first, rest) = path.split_first()?;
    let mut value = document.get_ref().get(*first)?;
    for key in rest {
        value = match value.get_ref() {
            DeValue::Table(inner) => inner.get(*key)?,
            DeValue::Array(inner) => inner.get(key.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    Some(value.span())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mistyped_name_gets_a_suggestion() {
        let known = ["idle", "remember"];
        assert_eq!(closest_name("idel", known), Some("idle"));
        assert_eq!(closest_name("rember", known), Some("remember"));
        assert_eq!(closest_name("turn-time", known), None);
    }

    #[test]
    fn a_value_is_found_by_its_key() {
        let text = "a = 1\n[b]\nc = \"x\"\n[[d]]\ne = 1\n[[d]]\ne = [2, 3]\n";
        assert_eq!(locate(text, &["b", "c"]).map(|at| &text[at]), Some("\"x\""));
        assert_eq!(locate(text, &["d", "1", "e", "1"]).map(|at| &text[at]), Some("3"));
        for missing in [&["b", "d"][..], &["d", "2", "e"], &["d", "e"], &["a", "b"]] {
            assert_eq!(locate(text, missing), None, "{missing:?}");
        }
    }
}
