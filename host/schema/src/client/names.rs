//! Identifiers made from names that strangers chose.

use std::collections::BTreeSet;

/// Maximum length of an identifier's words in characters.
const MAX_LENGTH: usize = 80;

/// The words of a name: runs of ASCII letters and digits. A capital letter behind a small one begins a word.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut inside, mut was_small) = (false, false);
    for letter in name.chars().take(MAX_LENGTH) {
        if !letter.is_ascii_alphanumeric() {
            (inside, was_small) = (false, false);
            continue;
        }
        if !inside || (was_small && letter.is_ascii_uppercase()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push(letter.to_ascii_lowercase());
        }
        (inside, was_small) = (true, !letter.is_ascii_uppercase());
    }
    words
}

fn begun_by_a_letter(name: String, prefix: &str) -> String {
    match name.chars().next() {
        Some(first) if first.is_ascii_alphabetic() => name,
        _ => format!("{prefix}{name}"),
    }
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string())
        + letters.as_str()
}

/// `order-line` as `OrderLine`.
pub(super) fn pascal(name: &str) -> String {
    begun_by_a_letter(words(name).iter().map(|word| capitalized(word)).collect(), "Type")
}

/// `order-line` as `orderLine`.
pub(super) fn camel(name: &str) -> String {
    let words = words(name);
    let mut all = words.iter();
    let first = all.next().cloned().unwrap_or_default();
    begun_by_a_letter(first + &all.map(|word| capitalized(word)).collect::<String>(), "it")
}

/// `order-line` as `order_line`.
pub(super) fn snake(name: &str) -> String {
    begun_by_a_letter(words(name).join("_"), "it_")
}

/// Whether a name is an identifier in every language, but for its keywords.
pub(super) fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|it| it.is_ascii_alphabetic() || it == '_')
        && letters.all(|it| it.is_ascii_alphanumeric() || it == '_')
}

/// Names of one scope.
#[derive(Debug)]
pub(super) struct Scope {
    reserved: &'static [&'static str],
    used: BTreeSet<String>,
}

impl Scope {
    pub(super) fn new(reserved: &'static [&'static str]) -> Self {
        Self { reserved, used: BTreeSet::new() }
    }

    /// This name; with `_` behind it if it is reserved, and with a number if it is in use.
    pub(super) fn unique(&mut self, name: String) -> String {
        let is_reserved = self.reserved.contains(&&*name);
        let name = if is_reserved { name + "_" } else { name };
        let mut chosen = name.clone();
        let mut number = 1;
        while !self.used.insert(chosen.clone()) {
            number += 1;
            let gap = if name.contains('_') && !name.ends_with('_') { "_" } else { "" };
            chosen = format!("{name}{gap}{number}");
        }
        chosen
    }
}

/// Characters that are not seen, or that change the direction of text.
fn is_hidden(it: char) -> bool {
    it.is_control()
        || matches!(it, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A description as one line of a comment, without what could end a comment or begin a block of code.
pub(super) fn comment(text: &str) -> String {
    let plain: String = text.chars().map(|it| if is_hidden(it) { ' ' } else { it }).collect();
    let plain = plain.replace("*/", "* /").replace("\"\"\"", "'''").replace("```", "'''");
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A string literal as in JSON, which is one in TypeScript and Python too.
pub(super) fn quoted(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    let mut out = String::new();
    for letter in json.chars() {
        if is_hidden(letter) {
            // All of them have four digits.
            out.push_str(&format!("\\u{:04x}", u32::from(letter)));
        } else {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_identifiers() {
        for (name, [in_pascal, in_camel, in_snake]) in [
            ("order-line", ["OrderLine", "orderLine", "order_line"]),
            ("orderLine", ["OrderLine", "orderLine", "order_line"]),
            ("HTTPServer", ["Httpserver", "httpserver", "httpserver"]),
            ("3d", ["Type3d", "it3d", "it_3d"]),
            ("\"); evil(", ["Evil", "evil", "evil"]),
            ("é", ["Type", "it", "it_"]),
            ("", ["Type", "it", "it_"]),
        ] {
            assert_eq!([pascal(name), camel(name), snake(name)], [in_pascal, in_camel, in_snake]);
        }
    }

    #[test]
    fn a_used_name_gets_a_number() {
        let mut scope = Scope::new(&["class"]);
        let all = ["class", "class", "order_line", "order_line"];
        let unique = all.map(|name| scope.unique(name.to_owned()));
        assert_eq!(unique, ["class_", "class_2", "order_line", "order_line_2"]);
    }

    #[test]
    fn a_description_stays_in_its_comment() {
        let hostile = "end */ evil(); \"\"\"\nevil()\r```\u{202e}x\u{2028}y";
        assert_eq!(comment(hostile), "end * / evil(); ''' evil() ''' x y");
        assert_eq!(comment("**/"), "** /");
        assert_eq!(quoted("\u{202e}\"\n\\"), r#""\u202e\"\n\\""#);
    }
}
