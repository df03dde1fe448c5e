//! Fields that a struct gained after its layout was frozen: numbered, and preserved even if they are unknown.
//!
//! Everything stored or sent is encoded as postcard, whose structs cannot grow. So each struct that may grow ends with
//! an [`Extensions`] block: a list of (number, bytes) pairs, or one zero byte if it is empty. A new field gets a new
//! number in its struct, listed in `docs/formats.md`, and numbers are never reused. A release that does not know a
//! number keeps the field when it writes the struct back.
//!
//! Readers may ignore even numbers that they do not know. Odd numbers are *required*: a struct with an unknown odd
//! number is refused with an error that names the field, because the struct would be misread without that field.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use bytes::Bytes;
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{self, CodecError};
use crate::extension_error::record_error;
pub use crate::extension_error::{ExtensionError, MAX_BYTES, MAX_FIELDS};

/// A struct that ends with an extension block.
pub trait Extensible {
    /// The struct's name in errors and in `docs/formats.md`.
    const NAME: &'static str;
    /// The field numbers that this release knows.
    const FIELDS: &'static [u32] = &[];
}

/// The extension block of `T`. An empty one allocates nothing.
pub struct Extensions<T> {
    /// Sorted by number, without duplicates.
    fields: Box<[Field]>,
    marker: PhantomData<fn() -> T>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
struct Field {
    number: u32,
    value: Bytes,
}

/// Whether a reader must understand the field with this number.
#[must_use]
pub fn is_required(number: u32) -> bool {
    number % 2 == 1
}

impl<T: Extensible> Extensions<T> {
    /// Returns the field with this number, which must be one of [`Extensible::FIELDS`].
    ///
    /// # Errors
    /// [`CodecError`] if its bytes are not a `V`.
    pub fn get<V: DeserializeOwned>(&self, number: u32) -> Result<Option<V>, CodecError> {
        debug_assert!(T::FIELDS.contains(&number), "{} has no field {number}", T::NAME);
        let found = self.fields.binary_search_by_key(&number, |field| field.number);
        found.ok().map(|at| codec::decode(&self.fields[at].value)).transpose()
    }

    /// Sets the field with this number, which must be one of [`Extensible::FIELDS`].
    ///
    /// # Errors
    /// [`CodecError`] if the value cannot be encoded or the block becomes too large; the block is then unchanged.
    pub fn set<V: Serialize>(&mut self, number: u32, value: &V) -> Result<(), CodecError> {
        debug_assert!(T::FIELDS.contains(&number), "{} has no field {number}", T::NAME);
        let value = Bytes::from(codec::encode(value)?);
        let mut fields = self.fields.to_vec();
        match fields.binary_search_by_key(&number, |field| field.number) {
            Ok(at) => fields[at].value = value,
            Err(at) => fields.insert(at, Field { number, value }),
        }
        let bytes: usize = fields.iter().map(|field| field.value.len()).sum();
        if fields.len() > MAX_FIELDS || bytes > MAX_BYTES {
            return Err(ExtensionError::TooLarge { struct_name: T::NAME }.into());
        }
        self.fields = fields.into();
        Ok(())
    }
}

impl<T: Extensible> Extensions<T> {
    /// Removes the field with this number from the block and returns it.
    ///
    /// # Errors
    /// [`CodecError`] if its bytes are not a `V`; the field is removed anyway.
    pub fn take<V: DeserializeOwned>(&mut self, number: u32) -> Result<Option<V>, CodecError> {
        let value = self.get(number);
        if self.fields.iter().any(|field| field.number == number) {
            let rest = self.fields.iter().filter(|field| field.number != number);
            self.fields = rest.cloned().collect();
        }
        value
    }
}

impl<T> Extensions<T> {
    /// Whether the block is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

impl<T> Default for Extensions<T> {
    fn default() -> Self {
        Self { fields: Box::default(), marker: PhantomData }
    }
}

impl<T> Clone for Extensions<T> {
    fn clone(&self) -> Self {
        Self { fields: self.fields.clone(), marker: PhantomData }
    }
}

impl<T> fmt::Debug for Extensions<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.fields.iter().map(|field| (field.number, &field.value))).finish()
    }
}

impl<T> PartialEq for Extensions<T> {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

impl<T> Eq for Extensions<T> {}

impl<T> Hash for Extensions<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fields.hash(state);
    }
}

impl<T> Serialize for Extensions<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.fields.serialize(serializer)
    }
}

impl<'de, T: Extensible> Deserialize<'de> for Extensions<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ExtensionsVisitor::<T>(PhantomData))
    }
}

struct ExtensionsVisitor<T>(PhantomData<fn() -> T>);

impl<'de, T: Extensible> Visitor<'de> for ExtensionsVisitor<T> {
    type Value = Extensions<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the extensions of {}", T::NAME)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut block: A) -> Result<Self::Value, A::Error> {
        let of = T::NAME;
        let (mut fields, mut bytes, mut last) = (Vec::new(), 0, 0);
        while let Some((number, value)) = block.next_element::<(u32, Bytes)>()? {
            if number <= last {
                return Err(record_error(ExtensionError::InvalidFieldOrder {
                    struct_name: of,
                    number,
                }));
            }
            if is_required(number) && !T::FIELDS.contains(&number) {
                return Err(record_error(ExtensionError::UnknownRequiredField {
                    struct_name: of,
                    number,
                }));
            }
            last = number;
            bytes += value.len();
            fields.push(Field { number, value });
            if fields.len() > MAX_FIELDS || bytes > MAX_BYTES {
                return Err(record_error(ExtensionError::TooLarge { struct_name: of }));
            }
        }
        Ok(Extensions { fields: fields.into(), marker: PhantomData })
    }
}

#[cfg(test)]
mod tests;
