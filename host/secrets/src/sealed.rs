//! Sealing and opening: AES-256-GCM with a random nonce, bound to the secret's name.

use std::fmt;

use ostraca_core::ids::ClusterId;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::{OpenError, SealError};
use crate::key::{ID, Key, SecretKeys, hex};
use crate::text::SecretText;

/// The first byte of a sealed secret.
const VERSION: u8 = 1;
/// Length of what precedes the encrypted text: the version, the id of the key, the nonce.
const HEADER_BYTES: usize = 1 + ID + NONCE_LEN;

/// Identifies a secret. A sealed secret opens only under the name it was sealed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretName<'a> {
    /// The cluster.
    pub cluster: ClusterId,
    /// The namespace of the type.
    pub namespace: &'a str,
    /// The entity type.
    pub entity_type: &'a str,
    /// The name that the type's manifest grants.
    pub name: &'a str,
}

impl fmt::Display for SecretName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.entity_type, self.name)
    }
}

impl SecretName<'_> {
    /// What the seal covers besides the text. No two names have the same bytes.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(b"ostraca secret");
        bytes.extend_from_slice(&self.cluster.0.to_be_bytes());
        for part in [self.namespace, self.entity_type] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }
}

impl SecretKeys {
    /// Seals the text of a secret under its name. No two seals of the same text are equal.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn seal(&self, name: SecretName<'_>, text: &str) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| SealError::NoRandomness)?;
        let key = self.sealing();
        let mut sealed = Vec::with_capacity(HEADER_BYTES + text.len() + AES_256_GCM.tag_len());
        sealed.push(VERSION);
        sealed.extend_from_slice(&key.id);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(text.as_bytes());
        let aad = Aad::from(name.bytes());
        let tag = cipher(key)
            .and_then(|it| {
                let nonce = Nonce::assume_unique_for_key(nonce);
                it.seal_in_place_separate_tag(nonce, aad, &mut sealed[HEADER_BYTES..])
            })
            .map_err(|_| SealError::TooLong)?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    /// Opens what was sealed under this name.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, name: SecretName<'_>, sealed: &[u8]) -> Result<SecretText, OpenError> {
        match sealed.first() {
            Some(&VERSION) => {}
            Some(&other) => return Err(OpenError::UnknownVersion(other)),
            None => return Err(OpenError::Damaged),
        }
        let Some((head, text)) = sealed.split_at_checked(HEADER_BYTES) else {
            return Err(OpenError::Damaged);
        };
        let (id, nonce) = head[1..].split_at(ID);
        let key = self.with_id(id).ok_or_else(|| OpenError::UnknownKey(hex(id)))?;
        let damaged = |_| OpenError::Damaged;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(damaged)?;
        let mut text = text.to_vec();
        let opened = cipher(key).map_err(damaged)?;
        let length =
            opened.open_in_place(nonce, Aad::from(name.bytes()), &mut text).map_err(damaged)?.len();
        text.truncate(length);
        // A text that is no UTF-8 was not sealed by this crate.
        String::from_utf8(text).map(SecretText::from).map_err(|_| OpenError::Damaged)
    }
}

/// The id of the key that sealed this, in hexadecimal.
#[must_use]
pub fn key_of(sealed: &[u8]) -> Option<String> {
    (sealed.first() == Some(&VERSION)).then(|| sealed.get(1..=ID).map(hex))?
}

fn cipher(key: &Key) -> Result<LessSafeKey, ring::error::Unspecified> {
    Ok(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*key.bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> SecretKeys {
        SecretKeys::parse(&SecretKeys::generate().expect("a key")).expect("parsed")
    }

    const NAME: SecretName<'_> = SecretName {
        cluster: ClusterId(7),
        namespace: "default",
        entity_type: "shop",
        name: "api-key",
    };

    #[test]
    fn a_secret_opens_under_its_own_name_only() {
        let keys = keys();
        let sealed = keys.seal(NAME, "hidden").expect("sealed");
        assert_eq!(keys.open(NAME, &sealed).expect("opened").reveal(), "hidden");
        for other in [
            SecretName { cluster: ClusterId(8), ..NAME },
            SecretName { namespace: "defaults", entity_type: "hop", ..NAME },
            SecretName { entity_type: "shopa", name: "pi-key", ..NAME },
            SecretName { entity_type: "sho", name: "papi-key", ..NAME },
            SecretName { name: "api-key2", ..NAME },
        ] {
            assert_eq!(keys.open(other, &sealed), Err(OpenError::Damaged));
        }
    }

    #[test]
    fn the_sealed_text_shows_nothing_and_never_repeats() {
        let keys = keys();
        let [a, b] = [(); 2].map(|()| keys.seal(NAME, "hidden text").expect("sealed"));
        assert_ne!(a, b);
        assert!(!a.windows(4).any(|part| b"hidden text".windows(4).any(|text| text == part)));
    }

    #[test]
    fn damage_anywhere_is_noticed() {
        let keys = keys();
        let sealed = keys.seal(NAME, "hidden").expect("sealed");
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            keys.open(NAME, &damaged).expect_err("refused");
            keys.open(NAME, &sealed[..at]).expect_err("refused");
        }
        keys.open(NAME, &[&sealed[..], b"x"].concat()).expect_err("refused");
    }

    #[test]
    fn an_earlier_key_opens_but_does_not_seal() {
        let [former, next] = [(); 2].map(|()| SecretKeys::generate().expect("a key"));
        let both = SecretKeys::parse(&format!("{}{}", *next, *former)).expect("parsed");
        let [former, next] = [former, next].map(|it| SecretKeys::parse(&it).expect("parsed"));
        let old = former.seal(NAME, "hidden").expect("sealed");
        assert_eq!(both.open(NAME, &old).expect("opened").reveal(), "hidden");
        let new = both.seal(NAME, "hidden").expect("sealed");
        assert_eq!(next.open(NAME, &new).expect("opened").reveal(), "hidden");
        let id = next.ids().next().expect("an id");
        assert_eq!(key_of(&new), Some(id.clone()));
        assert_eq!(former.open(NAME, &new), Err(OpenError::UnknownKey(id)));
    }
}
