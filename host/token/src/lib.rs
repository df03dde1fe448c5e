//! Tokens: what a client without a certificate shows to prove who it is.
//!
//! A token is a JSON Web Token, signed by an *issuer* whose public keys are in the cluster's policy: `ostraca token
//! issue`, or an OpenID Connect provider. [`verify`] checks it; the holder is then the principal
//! `token/ISSUER/SUBJECT`. [`SigningKey`] issues tokens.
//!
//! Confusing at first: an [`Issuer`] has two names. `iss` is what its tokens say, often a URL. Its name in the policy
//! is short and has no slash, so that no two issuers share a principal.

mod provider;
mod signing;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use ostraca_core::ids::ClusterId;
use serde::Deserialize;

pub use signing::{Claims, SigningKey, SigningKeyError};

/// Maximum length of a token in bytes.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Maximum length of a subject in bytes.
pub const MAX_SUBJECT_BYTES: usize = 255;
/// Maximum length of a token's id in bytes.
pub const MAX_ID_BYTES: usize = 128;
/// Maximum number of keys of an issuer.
pub const MAX_KEYS: usize = 32;

/// How far the clock of an issuer may be ahead of the cluster's, in milliseconds.
const SKEW_MS: f64 = 60_000.0;

/// Why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is longer than any token may be.
    #[error("the token has {0} bytes, limit is {MAX_TOKEN_BYTES}")]
    TooLarge(usize),
    /// It is not a JSON Web Token.
    #[error("it is not a token: {0}")]
    Malformed(String),
    /// The policy has no issuer with this `iss`.
    #[error("its issuer {0:?} is not in the cluster's policy")]
    UnknownIssuer(String),
    /// The issuer has no key with this id, or several keys if the token names none.
    #[error("{0}")]
    UnknownKey(String),
    /// It names another algorithm than its key is for.
    #[error("it is signed with {found}, but its key is for {expected}")]
    Algorithm {
        /// The algorithm in the token.
        found: String,
        /// The algorithm of the key.
        expected: String,
    },
    /// The signature does not match.
    #[error("its signature does not match its issuer's key")]
    Signature,
    /// It is for another cluster.
    #[error("it is not for this cluster: `aud` must be {0}")]
    Audience(ClusterId),
    /// It has expired.
    #[error("it expired {} s ago", ago_ms / 1_000)]
    Expired {
        /// How long ago.
        ago_ms: u64,
    },
    /// It is not valid yet.
    #[error("it becomes valid in {} s", in_ms / 1_000)]
    NotYetValid {
        /// In what time it will be.
        in_ms: u64,
    },
    /// It expires later than the policy permits.
    #[error("it expires in {} s, but a token may last {} s at most (`token-ttl`)", in_ms / 1_000, limit.as_secs())]
    TooLongLived {
        /// In what time it expires.
        in_ms: u64,
        /// The limit in the policy.
        limit: Duration,
    },
    /// Its subject or its id cannot be part of a principal.
    #[error("its {0}")]
    Subject(String),
}

/// Somebody whose tokens a cluster accepts.
#[derive(Clone)]
pub struct Issuer {
    name: String,
    iss: String,
    keys: Vec<IssuerKey>,
}

#[derive(Clone)]
struct IssuerKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl std::fmt::Debug for Issuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issuer")
            .field("name", &self.name)
            .field("iss", &self.iss)
            .finish_non_exhaustive()
    }
}

impl Issuer {
    /// An issuer with a name of the policy's, the `iss` of its tokens, and its public keys as a JSON Web Key Set. Keys
    /// for other algorithms than EdDSA (Ed25519), ES256 and RS256, and for encryption, are left out.
    ///
    /// # Errors
    /// What is wrong with the keys.
    pub fn new(name: &str, iss: &str, jwks: &str) -> Result<Self, String> {
        let set: JwkSet = serde_json::from_str(jwks)
            .map_err(|error| format!("`jwks` is not a JSON Web Key Set: {error}"))?;
        let mut keys = Vec::new();
        let mut ids = HashSet::new();
        for jwk in set.keys {
            if jwk.common.public_key_use == Some(PublicKeyUse::Encryption) {
                continue;
            }
            let Some(algorithm) = algorithm_of(&jwk) else { continue };
            let key = DecodingKey::from_jwk(&jwk)
                .map_err(|error| format!("a key of `jwks` cannot be read: {error}"))?;
            provider::check(algorithm, &key)?;
            let id = jwk.common.key_id.clone();
            if !ids.insert(id.clone()) {
                let id = id.unwrap_or_else(|| "none".into());
                return Err(format!("two keys of `jwks` have the same `kid`: {id}"));
            }
            keys.push(IssuerKey { id, algorithm, key });
        }
        match keys.len() {
            0 => Err("`jwks` has no key for EdDSA (Ed25519), ES256 or RS256".into()),
            1..=MAX_KEYS => Ok(Self { name: name.into(), iss: iss.into(), keys }),
            more => Err(format!("`jwks` has {more} keys, limit is {MAX_KEYS}")),
        }
    }

    /// Its name in the policy.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The `iss` of its tokens.
    #[must_use]
    pub fn iss(&self) -> &str {
        &self.iss
    }

    fn key(&self, id: Option<&str>) -> Result<&IssuerKey, TokenError> {
        match (id, self.keys.as_slice()) {
            (None, [only]) => Ok(only),
            (None, _) => Err(TokenError::UnknownKey(format!(
                "it names no key (`kid`), but its issuer has {}",
                self.keys.len()
            ))),
            (Some(id), keys) => {
                keys.iter().find(|key| key.id.as_deref() == Some(id)).ok_or_else(|| {
                    let id: String = id.chars().take(64).collect();
                    TokenError::UnknownKey(format!("its issuer has no key {id:?} (`kid`)"))
                })
            }
        }
    }
}

/// The algorithm that a key is for; `None` for one that is not supported.
fn algorithm_of(jwk: &Jwk) -> Option<Algorithm> {
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            Algorithm::EdDSA
        }
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            Algorithm::ES256
        }
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        _ => return None,
    };
    // A key that says what it is for is for nothing else.
    match jwk.common.key_algorithm {
        Some(named) => (named.to_string() == format!("{algorithm:?}")).then_some(algorithm),
        None => Some(algorithm),
    }
}

/// What a valid token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedToken {
    /// Its holder: `token/ISSUER/SUBJECT`.
    pub principal: String,
    /// What a revocation may name: the holder and, if the token has an id, `token-id/ISSUER/ID`.
    pub subjects: Vec<String>,
    /// When it expires, in milliseconds of UTC since 1970.
    pub expires_ms: u64,
}

/// The claims that are checked here.
#[derive(Deserialize)]
struct CheckedClaims {
    sub: String,
    /// Seconds since 1970, with fractions.
    exp: f64,
    #[serde(default)]
    nbf: Option<f64>,
    #[serde(default)]
    jti: Option<String>,
}

#[derive(Deserialize)]
struct IssuerClaim {
    iss: String,
}

/// Checks a token: its signature by a key of its issuer, with the algorithm that the key is for; that it is for this
/// cluster; and its times, at `utc_ms` of the cluster's UTC.
///
/// # Errors
/// [`TokenError`].
pub fn verify(
    issuers: &[Issuer],
    token: &str,
    cluster: ClusterId,
    utc_ms: u64,
    max_ttl: Duration,
) -> Result<VerifiedToken, TokenError> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(TokenError::TooLarge(token.len()));
    }
    provider::install();
    let malformed = |error: jsonwebtoken::errors::Error| TokenError::Malformed(error.to_string());
    let header = jsonwebtoken::decode_header(token).map_err(malformed)?;
    // Only to choose the keys: the signature is checked below.
    let claimed: IssuerClaim =
        jsonwebtoken::dangerous::insecure_decode_claims(token).map_err(malformed)?;
    let issuer = issuers
        .iter()
        .find(|issuer| issuer.iss == claimed.iss)
        .ok_or_else(|| TokenError::UnknownIssuer(claimed.iss.chars().take(200).collect()))?;
    // What a token demands (`crit`) that is not understood, and other kinds of signed claims.
    let typ = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
    if header.crit.is_some() || !matches!(typ.as_str(), "jwt" | "at+jwt" | "application/at+jwt") {
        return Err(TokenError::Malformed(format!("it is a {typ}, or has critical headers")));
    }
    let key = issuer.key(header.kid.as_deref())?;
    if header.alg != key.algorithm {
        return Err(TokenError::Algorithm {
            found: format!("{:?}", header.alg),
            expected: format!("{:?}", key.algorithm),
        });
    }
    let mut checks = Validation::new(key.algorithm);
    checks.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    checks.set_issuer(&[&issuer.iss]);
    checks.set_audience(&[cluster]);
    // By the cluster's clock, below.
    checks.validate_exp = false;
    let claims = jsonwebtoken::decode::<CheckedClaims>(token, &key.key, &checks);
    let claims = claims.map_err(|error| refused(&error, cluster))?.claims;
    let expires_ms = checked_times(&claims, utc_ms, max_ttl)?;
    let subject = checked_part("subject (`sub`)", claims.sub, MAX_SUBJECT_BYTES)?;
    let principal = format!("token/{}/{subject}", issuer.name);
    let mut subjects = vec![principal.clone()];
    if let Some(id) = claims.jti {
        let id = checked_part("id (`jti`)", id, MAX_ID_BYTES)?;
        subjects.push(format!("token-id/{}/{id}", issuer.name));
    }
    Ok(VerifiedToken { principal, subjects, expires_ms })
}

/// The end of a token's validity, in milliseconds, if it is valid now.
fn checked_times(
    claims: &CheckedClaims,
    utc_ms: u64,
    max_ttl: Duration,
) -> Result<u64, TokenError> {
    // Whole milliseconds up to the year 200,000 are exact.
    let now = utc_ms as f64;
    let (expires, starts) = (claims.exp * 1_000.0, claims.nbf.unwrap_or_default() * 1_000.0);
    if !expires.is_finite() || !starts.is_finite() {
        return Err(TokenError::Malformed("a time is not a number".into()));
    }
    if expires <= now {
        return Err(TokenError::Expired { ago_ms: (now - expires) as u64 });
    }
    if starts > now + SKEW_MS {
        return Err(TokenError::NotYetValid { in_ms: (starts - now) as u64 });
    }
    let rest = expires - now;
    if rest > max_ttl.as_millis() as f64 + SKEW_MS {
        return Err(TokenError::TooLongLived { in_ms: rest as u64, limit: max_ttl });
    }
    Ok(expires as u64)
}

/// Whether a token could have this subject.
#[must_use]
pub fn is_subject(text: &str) -> bool {
    checked_part("", text.into(), MAX_SUBJECT_BYTES).is_ok()
}

/// Whether a token could have this id.
#[must_use]
pub fn is_token_id(text: &str) -> bool {
    checked_part("", text.into(), MAX_ID_BYTES).is_ok()
}

fn checked_part(what: &str, text: String, limit: usize) -> Result<String, TokenError> {
    if !(1..=limit).contains(&text.len()) {
        return Err(TokenError::Subject(format!(
            "{what} is {} bytes, must be 1 to {limit}",
            text.len()
        )));
    }
    if text.chars().any(|c| is_invisible(c) || c == '*') {
        return Err(TokenError::Subject(format!("{what} has a control character or a `*`")));
    }
    Ok(text)
}

/// Control characters, and those that change how others look or have no width: two subjects must not look alike.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn refused(error: &jsonwebtoken::errors::Error, cluster: ClusterId) -> TokenError {
    use jsonwebtoken::errors::ErrorKind;
    match error.kind() {
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::InvalidAudience => TokenError::Audience(cluster),
        ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => TokenError::Audience(cluster),
        _ => TokenError::Malformed(error.to_string()),
    }
}
