//! The keys that all nodes of a cluster have, as a file.

use std::fmt;

use ring::digest::{Context, SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::error::{KeyFileError, MAX_KEYS, PREFIX, SealError};

/// Length of a key in bytes.
pub(crate) const KEY: usize = 32;
/// Length of a key's id in bytes.
pub(crate) const ID: usize = 8;

/// One key.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) bytes: Zeroizing<[u8; KEY]>,
    pub(crate) id: [u8; ID],
}

/// The keys of a cluster. The first one seals; the others only open what was sealed with them.
#[derive(Clone)]
pub struct SecretKeys {
    keys: Vec<Key>,
}

impl fmt::Debug for SecretKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl SecretKeys {
    /// Creates a key, as the text of a file.
    ///
    /// # Errors
    /// [`SealError::NoRandomness`].
    pub fn generate() -> Result<Zeroizing<String>, SealError> {
        let mut bytes = Zeroizing::new([0; KEY]);
        SystemRandom::new().fill(&mut *bytes).map_err(|_| SealError::NoRandomness)?;
        let mut text = Zeroizing::new(String::with_capacity(2 * KEY + 256));
        text.push_str("# Seals the secrets of types (`ostraca secret set`). Must be the same on all nodes of the cluster.\n");
        text.push_str(PREFIX);
        for byte in *bytes {
            for digit in [byte >> 4, byte & 15] {
                text.extend(char::from_digit(digit.into(), 16));
            }
        }
        text.push('\n');
        Ok(text)
    }

    /// Reads the text of a file: a key in each line, and comments.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let mut keys: Vec<Key> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key = parse_line(line).ok_or(KeyFileError::NotAKey(at + 1))?;
            if keys.len() == MAX_KEYS {
                return Err(KeyFileError::TooManyKeys);
            }
            keys.push(key);
        }
        if keys.is_empty() { Err(KeyFileError::NoKey) } else { Ok(Self { keys }) }
    }

    /// The ids of the keys, in hexadecimal, the sealing one first.
    pub fn ids(&self) -> impl Iterator<Item = String> {
        self.keys.iter().map(|key| hex(&key.id))
    }

    pub(crate) fn sealing(&self) -> &Key {
        // There is at least one.
        &self.keys[0]
    }

    pub(crate) fn with_id(&self, id: &[u8]) -> Option<&Key> {
        self.keys.iter().find(|key| key.id == id)
    }
}

fn parse_line(line: &str) -> Option<Key> {
    let digits = line.strip_prefix(PREFIX)?.as_bytes();
    if digits.len() != 2 * KEY {
        return None;
    }
    let mut bytes = Zeroizing::new([0; KEY]);
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |of: u8| char::from(of).to_digit(16).and_then(|it| u8::try_from(it).ok());
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    let mut digest = Context::new(&SHA256);
    digest.update(b"id of a secret key of ostraca");
    digest.update(&*bytes);
    let mut id = [0; ID];
    id.copy_from_slice(&digest.finish().as_ref()[..ID]);
    Some(Key { bytes, id })
}

/// Bytes in lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_file_has_one_key_of_its_own() {
        let [a, b] = [(); 2].map(|()| {
            let text = SecretKeys::generate().expect("a key");
            SecretKeys::parse(&text).expect("parsed").ids().collect::<Vec<_>>()
        });
        assert_eq!((a.len(), b.len()), (1, 1));
        assert_ne!(a, b);
    }

    #[test]
    fn a_damaged_file_is_refused_without_showing_it() {
        let good = format!("{PREFIX}{}", "0f".repeat(KEY));
        assert_eq!(SecretKeys::parse(&format!("# a\n\n {good} \n")).expect("one").ids().count(), 1);
        let refused = |text: &str| SecretKeys::parse(text).expect_err("refused");
        assert_eq!(refused("# nothing\n"), KeyFileError::NoKey);
        for wrong in [&good[1..], &good[..good.len() - 1], &good.replace("0f", "0g"), "hidden"] {
            let error = refused(&format!("{good}\n{wrong}\n"));
            assert_eq!(error, KeyFileError::NotAKey(2));
            assert!(!error.to_string().contains("hidden"));
        }
        assert_eq!(refused(&format!("{good}\n").repeat(17)), KeyFileError::TooManyKeys);
    }

    #[test]
    fn keys_are_not_printed() {
        let text = format!("{PREFIX}{}", "0f".repeat(KEY));
        let shown = format!("{:?}", SecretKeys::parse(&text).expect("one"));
        assert!(!shown.contains("0f0f"), "{shown}");
    }
}
