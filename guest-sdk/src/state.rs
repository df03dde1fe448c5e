//! The entity's durable keys and values.
//!
//! A turn reads its own writes, and they are committed with the turn or not at all. A key is 1 to 512 bytes long;
//! any other length traps. A write traps in a query, and beyond the type's limits on state or on the writes of one
//! turn. Values are JSON; the functions with `raw` in their names use bytes.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::types::Page;

/// Number of entries that [`list`] fetches from the host in one call.
const PAGE: u32 = 100;

/// Returns the value of a key; `None` if the key does not exist.
///
/// # Panics
/// With `state-does-not-decode` if the value is not a valid `T`.
pub fn get<T: DeserializeOwned>(key: &str) -> Option<T> {
    get_raw(key).map(|value| decode(key, &value))
}

/// Sets a key.
///
/// # Panics
/// With `state-does-not-encode` if JSON cannot express the value: a map whose keys cannot be strings, or a number
/// that is NaN or infinite.
pub fn set<T: Serialize + ?Sized>(key: &str, value: &T) {
    match to_json(value) {
        Ok(value) => set_raw(key, &value),
        Err(error) => panic!(
            "state-does-not-encode: the value of key `{key}` cannot be stored: {error}; nothing was changed"
        ),
    }
}

/// Deletes a key, and returns whether it existed.
pub fn delete(key: &str) -> bool {
    crate::host::delete(key)
}

/// Iterates over the keys that start with `prefix`, in bytewise order, with their values. Fetches pages as it goes.
pub fn list<T: DeserializeOwned>(prefix: &str) -> List<T> {
    list_after(prefix, None)
}

/// Like [`list`], but starts after `cursor`: a page's [`Page::next`], or any key, whether it exists or not.
pub fn list_after<T: DeserializeOwned>(prefix: &str, cursor: Option<String>) -> List<T> {
    List {
        prefix: prefix.to_owned(),
        page: Vec::new().into_iter(),
        next: Some(cursor),
        values: PhantomData,
    }
}

/// Returns the value of a key as bytes; `None` if the key does not exist.
pub fn get_raw(key: &str) -> Option<Vec<u8>> {
    crate::host::get(key)
}

/// Sets a key to a value in bytes.
pub fn set_raw(key: &str, value: &[u8]) {
    crate::host::set(key, value);
}

/// Returns one page of the keys that start with `prefix`: at most `limit` of them (1 to 1000, otherwise it traps),
/// after `cursor`.
pub fn list_raw(prefix: &str, limit: u32, cursor: Option<&str>) -> Page {
    crate::host::list(prefix, limit, cursor)
}

/// The iterator that [`list`] returns.
///
/// # Panics
/// With `state-does-not-decode` at a value that is not a valid `T`.
#[derive(Debug)]
pub struct List<T> {
    prefix: String,
    page: std::vec::IntoIter<(String, Vec<u8>)>,
    /// The cursor of the next page. Outer `None`: there is no further page. Inner `None`: it is the first page.
    next: Option<Option<String>>,
    values: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Iterator for List<T> {
    type Item = (String, T);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.page.next() {
                let value = decode(&key, &value);
                return Some((key, value));
            }
            let cursor = self.next.take()?;
            let page = list_raw(&self.prefix, PAGE, cursor.as_deref());
            self.page = page.entries.into_iter();
            self.next = page.next.map(Some);
        }
    }
}

fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> T {
    match from_json(value) {
        Ok(value) => value,
        Err(error) => panic!(
            "state-does-not-decode: the value of key `{key}` is not a `{}`: {error}; read the old format with get_raw, or \
             give new fields #[serde(default)], and deploy again; nothing was changed",
            std::any::type_name::<T>()
        ),
    }
}

/// Encodes a value as JSON. Fails if the JSON would read back as something else.
pub(crate) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, String> {
    crate::finite::check(value)?;
    serde_json::to_vec(value).map_err(|error| error.to_string())
}

/// Uses serde_json's `str` reader, as arguments do: a second reader would put a second parser into the component.
pub(crate) fn from_json<T: DeserializeOwned>(value: &[u8]) -> Result<T, serde_json::Error> {
    match std::str::from_utf8(value) {
        Ok(value) => serde_json::from_str(value),
        Err(_) => Err(serde::de::Error::custom("not UTF-8")),
    }
}
