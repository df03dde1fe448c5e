//! Issues tokens, signed with Ed25519.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde::Serialize;

use super::provider;

/// Why a key cannot be created or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SigningKeyError(String);

/// What a token says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claims {
    /// The issuer.
    pub iss: String,
    /// The holder.
    pub sub: String,
    /// The cluster's id.
    pub aud: String,
    /// When it was issued, in seconds of UTC since 1970.
    pub iat: u64,
    /// When it expires, in the same unit.
    pub exp: u64,
    /// Its id, by which it can be revoked.
    pub jti: String,
}

/// A private key that signs tokens.
pub struct SigningKey {
    pkcs8: Vec<u8>,
    public: Vec<u8>,
    id: String,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never print the key.
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Creates a key.
    ///
    /// # Errors
    /// [`SigningKeyError`] if the system provides no randomness.
    pub fn create() -> Result<Self, SigningKeyError> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| SigningKeyError("the system provides no randomness".into()))?;
        Self::from_pkcs8(pkcs8.as_ref())
    }

    /// Reads a key in PKCS#8 form (DER).
    ///
    /// # Errors
    /// [`SigningKeyError`] if it is not an Ed25519 key.
    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, SigningKeyError> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8)
            .map_err(|error| SigningKeyError(format!("it is not an Ed25519 key: {error}")))?;
        let public = pair.public_key().as_ref().to_vec();
        let digest = ring::digest::digest(&ring::digest::SHA256, &public);
        let id = digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { pkcs8: pkcs8.to_vec(), public, id })
    }

    /// The key in PKCS#8 form (DER): a secret.
    #[must_use]
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// The public key, as a JSON Web Key Set for a policy.
    #[must_use]
    pub fn jwks(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(&self.public);
        format!(
            r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":"{}","x":"{x}"}}]}}"#,
            self.id
        )
    }

    /// Issues a token.
    ///
    /// # Errors
    /// [`SigningKeyError`] if it cannot be encoded.
    pub fn issue(&self, claims: &Claims) -> Result<String, SigningKeyError> {
        provider::install();
        let header = Header { kid: Some(self.id.clone()), ..Header::new(Algorithm::EdDSA) };
        let key = EncodingKey::from_ed_der(&self.pkcs8);
        jsonwebtoken::encode(&header, claims, &key)
            .map_err(|error| SigningKeyError(error.to_string()))
    }
}
