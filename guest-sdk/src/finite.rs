//! Finds numbers that JSON cannot express.
//!
//! `serde_json` writes NaN and infinities as `null`, which reads back as something else or not at all. The written
//! JSON does not show whether a `null` was a number or `None`, so the value is checked before it is written.

use std::fmt;

use serde::Serialize;
use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// Fails if the value contains a number that is NaN or infinite, and says where.
pub(crate) fn check<T: Serialize + ?Sized>(value: &T) -> Result<(), String> {
    match value.serialize(FiniteCheck) {
        Err(NonFinite::Number { number, place }) => {
            let at = if place.is_empty() { String::new() } else { format!(" in `{place}`") };
            Err(format!("JSON cannot express {number}{at}"))
        }
        // A type that cannot be serialized fails again when it is written.
        Ok(()) | Err(NonFinite::Refused) => Ok(()),
    }
}

#[derive(Debug)]
enum NonFinite {
    Number { number: f64, place: String },
    Refused,
}

impl NonFinite {
    #[cold]
    fn within(self, name: &str) -> Self {
        match self {
            Self::Number { number, place } if place.is_empty() => {
                Self::Number { number, place: name.to_owned() }
            }
            Self::Number { number, place } => {
                Self::Number { number, place: format!("{name}.{place}") }
            }
            Self::Refused => Self::Refused,
        }
    }
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number that JSON cannot express")
    }
}

impl std::error::Error for NonFinite {}

impl serde::ser::Error for NonFinite {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Refused
    }
}

type Walked = Result<(), NonFinite>;

/// A serializer that visits the whole value and produces nothing.
#[derive(Clone, Copy)]
struct FiniteCheck;

macro_rules! harmless {
    ($($name:ident: $of:ty),*) => {
        $(fn $name(self, _: $of) -> Walked { Ok(()) })*
    };
}

impl Serializer for FiniteCheck {
    type Ok = ();
    type Error = NonFinite;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    harmless!(
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32,
        serialize_i64: i64, serialize_i128: i128, serialize_u8: u8, serialize_u16: u16,
        serialize_u32: u32, serialize_u64: u64, serialize_u128: u128, serialize_char: char,
        serialize_str: &str, serialize_bytes: &[u8], serialize_unit_struct: &'static str
    );

    fn serialize_f32(self, number: f32) -> Walked {
        self.serialize_f64(number.into())
    }

    fn serialize_f64(self, number: f64) -> Walked {
        match number.is_finite() {
            true => Ok(()),
            false => Err(NonFinite::Number { number, place: String::new() }),
        }
    }

    fn serialize_none(self) -> Walked {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Walked {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Walked {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Walked {
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Walked {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Walked {
        value.serialize(self).map_err(|found| found.within(variant))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, NonFinite> {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, NonFinite> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, NonFinite> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, NonFinite> {
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, NonFinite> {
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, NonFinite> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, NonFinite> {
        Ok(self)
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, _: &T) -> Walked {
        Ok(())
    }
}

macro_rules! walks {
    ($($of:ident, $name:ident;)*) => {
        $(impl $of for FiniteCheck {
            type Ok = ();
            type Error = NonFinite;

            fn $name<T: Serialize + ?Sized>(&mut self, value: &T) -> Walked {
                value.serialize(*self)
            }

            fn end(self) -> Walked {
                Ok(())
            }
        })*
    };
    (named $($of:ident;)*) => {
        $(impl $of for FiniteCheck {
            type Ok = ();
            type Error = NonFinite;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Walked {
                value.serialize(*self).map_err(|found| found.within(name))
            }

            fn end(self) -> Walked {
                Ok(())
            }
        })*
    };
}

walks! {
    SerializeSeq, serialize_element;
    SerializeTuple, serialize_element;
    SerializeTupleStruct, serialize_field;
    SerializeTupleVariant, serialize_field;
}

walks! {
    named
    SerializeStruct;
    SerializeStructVariant;
}

impl SerializeMap for FiniteCheck {
    type Ok = ();
    type Error = NonFinite;

    // JSON keys are strings: serde_json itself refuses NaN and infinities as keys.
    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Walked {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Walked {
        value.serialize(*self)
    }

    fn end(self) -> Walked {
        Ok(())
    }
}
