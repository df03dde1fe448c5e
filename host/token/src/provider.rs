//! Signatures by ring, the one provider of cryptography of this project, for the library that reads tokens.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Signer, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, Ed25519KeyPair, RSA_PKCS1_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

static RING: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes the library use ring, in this process.
pub(crate) fn install() {
    // A second call, or another provider that the embedding program has installed, changes nothing.
    let _ = RING.install_default();
}

/// Refuses a public key that could never verify anything.
pub(crate) fn check(algorithm: Algorithm, key: &DecodingKey) -> Result<(), String> {
    let wrong = |what: String| Err(format!("a key of `jwks` cannot be used: {what}"));
    match (algorithm, key.kind()) {
        (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(bytes)) if bytes.len() == 32 => Ok(()),
        (Algorithm::ES256, DecodingKeyKind::SecretOrDer(bytes)) if bytes.len() == 65 => Ok(()),
        (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, .. })
            if (256..=1_024).contains(&n.len()) =>
        {
            Ok(())
        }
        (Algorithm::RS256, _) => wrong("an RSA key must have 2,048 to 8,192 bits".into()),
        (algorithm, _) => wrong(format!("its length is wrong for {algorithm:?}")),
    }
}

fn unsupported() -> Error {
    ErrorKind::InvalidAlgorithm.into()
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    match algorithm {
        Algorithm::EdDSA => {
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.as_bytes())
                .map_err(|_| ErrorKind::InvalidEddsaKey)?;
            Ok(Box::new(EdDsaSigner(pair)))
        }
        _ => Err(unsupported()),
    }
}

struct EdDsaSigner(Ed25519KeyPair);

impl Signer<Vec<u8>> for EdDsaSigner {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        Ok(self.0.sign(message).as_ref().to_vec())
    }
}

impl JwtSigner for EdDsaSigner {
    fn algorithm(&self) -> Algorithm {
        Algorithm::EdDSA
    }
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    let algorithm = *algorithm;
    if !matches!(algorithm, Algorithm::EdDSA | Algorithm::ES256 | Algorithm::RS256) {
        return Err(unsupported());
    }
    Ok(Box::new(PublicKey { algorithm, key: key.clone() }))
}

struct PublicKey {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for PublicKey {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let plain = |algorithm: &'static dyn VerificationAlgorithm, bytes: &[u8]| {
            UnparsedPublicKey::new(algorithm, bytes).verify(message, signature)
        };
        let verified = match (self.algorithm, self.key.kind()) {
            (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(bytes)) => plain(&ED25519, bytes),
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(bytes)) => {
                plain(&ECDSA_P256_SHA256_FIXED, bytes)
            }
            (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(
                    &RSA_PKCS1_2048_8192_SHA256,
                    message,
                    signature,
                )
            }
            _ => return Err(signature::Error::new()),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for PublicKey {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
