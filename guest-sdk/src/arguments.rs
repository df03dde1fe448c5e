//! Decodes a message's body into a method's arguments.
//!
//! Non-generic code, which all methods share, splits the body into raw JSON values. Only the last step is generic: from
//! one raw value to the type of one parameter. Arguments and state use only serde_json's `str` reader, since each kind
//! of reader compiles to another copy of the parser. Both measures keep guests small.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::body::{Body, FromBody};
use crate::context;
use crate::raw::MessageError;

/// Maximum number of characters of a caller's argument name that an error shows.
const SHOWN: usize = 64;

/// The text before the position in a serde_json error.
const PLACE: &[u8] = b" at line ";

/// A parameter of a method.
#[derive(Debug)]
pub struct Parameter {
    /// The parameter's name in the source and in JSON.
    pub name: &'static str,
    /// Whether the argument may be omitted, because the parameter's type is an `Option`.
    pub optional: bool,
}

/// The arguments of one message, still as JSON.
#[derive(Debug)]
pub struct Arguments<'b> {
    signature: &'static str,
    parameters: &'static [Parameter],
    /// One value per parameter; `None` if it is absent.
    values: Vec<Option<&'b str>>,
    /// Whether the whole body is the value of the only parameter.
    bare: bool,
    /// The whole body, for methods that read it themselves.
    body: &'b [u8],
}

impl<'b> Arguments<'b> {
    /// Leaves a body as it is.
    pub(crate) fn raw(signature: &'static str, body: &'b [u8]) -> Self {
        Self { signature, parameters: &[], values: Vec::new(), bare: false, body }
    }

    /// Reads the whole body.
    pub fn body<T: FromBody>(&self) -> Result<T, MessageError> {
        let content_type =
            context::current_message().map(|message| message.content_type).unwrap_or_default();
        let body = Body { bytes: self.body.to_vec(), content_type };
        T::from_body(body).map_err(|why| self.refuse(&why))
    }

    /// Splits a body into arguments. Errors show the `signature`, such as `add(by: u64)`.
    pub(crate) fn split(
        signature: &'static str,
        parameters: &'static [Parameter],
        body: &'b [u8],
    ) -> Result<Self, MessageError> {
        let mut this = Self { signature, parameters, values: Vec::new(), bare: false, body };
        this.values.resize(parameters.len(), None);
        let Ok(body) = std::str::from_utf8(body) else {
            return Err(this.refuse("the body is not UTF-8"));
        };
        let body = body.trim_ascii();
        if body.is_empty() || (body == "null" && parameters.is_empty()) {
            return Ok(this);
        }
        if let [only] = parameters
            && !is_named_form(body, only)
        {
            this.values = vec![Some(body)];
            this.bare = true;
            return Ok(this);
        }
        let members = match members(body) {
            Ok(members) => members,
            Err(error) if parameters.is_empty() => {
                return Err(this.refuse(&format!("takes no arguments: {error}")));
            }
            Err(error) => {
                return Err(
                    this.refuse(&format!("expected a JSON object with these names: {error}"))
                );
            }
        };
        for (name, value) in members {
            let Some(at) = parameters.iter().position(|parameter| parameter.name == name) else {
                return Err(this.unknown(&name));
            };
            if this.values[at].replace(value.get()).is_some() {
                return Err(this.refuse(&format!("duplicate argument `{name}`")));
            }
        }
        Ok(this)
    }

    /// Decodes the argument of the parameter with index `at`.
    pub fn get<T: DeserializeOwned>(&self, at: usize) -> Result<T, MessageError> {
        match self.values[at] {
            Some(value) => {
                serde_json::from_str(value).map_err(|error| self.type_mismatch(at, &error))
            }
            None if self.parameters[at].optional => {
                serde_json::from_str("null").map_err(|error| self.type_mismatch(at, &error))
            }
            None => Err(self.refuse(&format!("missing argument `{}`", self.parameters[at].name))),
        }
    }

    fn type_mismatch(&self, at: usize, error: &serde_json::Error) -> MessageError {
        let name = self.parameters[at].name;
        if self.bare
            && let Some(body) = self.values[at]
            && let Ok(members) = members(body)
            && members.iter().any(|(member, _)| member == name)
            && let Some((other, _)) = members.iter().find(|(member, _)| member != name)
        {
            return self.unknown(other);
        }
        // A position in one argument would be mistaken for a position in the body.
        let mut error = error.to_string();
        if let Some(at) = error.as_bytes().windows(PLACE.len()).rposition(|part| part == PLACE) {
            error.truncate(at);
        }
        self.refuse(&format!("argument `{name}`: {error}"))
    }

    fn unknown(&self, name: &str) -> MessageError {
        let shown: String = name.chars().take(SHOWN).collect();
        self.refuse(&format!("unknown argument `{shown}`"))
    }

    fn refuse(&self, why: &str) -> MessageError {
        MessageError::InvalidArguments(format!("{}: {why}", self.signature))
    }
}

/// Whether a body is an object whose only member is the parameter. If the parameter may be omitted, the object may also
/// be empty.
fn is_named_form(body: &str, parameter: &Parameter) -> bool {
    let named = |members: &[Member<'_>]| match members {
        [] => parameter.optional,
        [(only, _)] => only == parameter.name,
        _ => false,
    };
    body.starts_with('{') && members(body).is_ok_and(|members| named(&members))
}

type Member<'b> = (String, &'b RawValue);

/// The members of a JSON object, in order and with duplicates.
fn members(body: &str) -> Result<Vec<Member<'_>>, serde_json::Error> {
    struct Members;
    impl<'b> Visitor<'b> for Members {
        type Value = Vec<Member<'b>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object")
        }

        fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(name) = map.next_key::<String>()? {
                members.push((name, map.next_value()?));
            }
            Ok(members)
        }
    }
    let mut json = serde_json::Deserializer::from_str(body);
    let members = json.deserialize_map(Members)?;
    json.end()?;
    Ok(members)
}
