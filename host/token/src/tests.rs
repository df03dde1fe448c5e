use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};

use super::*;

const CLUSTER: ClusterId = ClusterId(0xabc);
/// The time of the tests, in seconds.
const NOW: u64 = 1_800_000_000;
const DAY: Duration = Duration::from_secs(86_400);

/// An RSA key that only these tests use.
const RSA: &str = include_str!("tests/rsa.b64");

/// Somebody who signs tokens with other means than this crate.
enum Signer {
    Ed(SigningKey),
    Ec(EcdsaKeyPair),
    Rsa(Box<RsaKeyPair>),
}

impl Signer {
    fn ed() -> Self {
        Self::Ed(SigningKey::create().expect("a key"))
    }

    fn ec() -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        Self::Ec(EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("a key"))
    }

    fn rsa() -> Self {
        let der = STANDARD.decode(RSA.replace('\n', "")).expect("base64");
        Self::Rsa(Box::new(RsaKeyPair::from_pkcs8(&der).expect("a key")))
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Ed(_) => "EdDSA",
            Self::Ec(_) => "ES256",
            Self::Rsa(_) => "RS256",
        }
    }

    fn jwk(&self, kid: &str) -> Value {
        match self {
            Self::Ed(key) => {
                let mut set: Value = serde_json::from_str(&key.jwks()).expect("JSON");
                let mut key = set["keys"][0].take();
                key["kid"] = kid.into();
                key
            }
            Self::Ec(pair) => {
                let point = pair.public_key().as_ref();
                let (x, y) = (&point[1..33], &point[33..]);
                json!({
                    "kty": "EC", "crv": "P-256", "kid": kid, "use": "sig",
                    "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
                })
            }
            Self::Rsa(pair) => {
                let key: ring::rsa::PublicKeyComponents<Vec<u8>> = pair.public().into();
                json!({
                    "kty": "RSA", "kid": kid, "alg": "RS256", "use": "sig",
                    "n": URL_SAFE_NO_PAD.encode(key.n), "e": URL_SAFE_NO_PAD.encode(key.e),
                })
            }
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Ed(key) => {
                let pair = ring::signature::Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.pkcs8());
                pair.expect("a key").sign(message).as_ref().to_vec()
            }
            Self::Ec(pair) => pair.sign(&random, message).expect("signed").as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).expect("signed");
                signature
            }
        }
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

fn claims() -> Value {
    json!({
        "iss": "https://login.example.com", "sub": "alice", "aud": CLUSTER.to_string(),
        "exp": NOW + 3_600, "jti": "t1",
    })
}

fn issuer(keys: &[Value]) -> Issuer {
    let jwks = json!({ "keys": keys }).to_string();
    Issuer::new("corp", "https://login.example.com", &jwks).expect("an issuer")
}

fn check(issuer: &Issuer, token: &str) -> Result<VerifiedToken, TokenError> {
    verify(std::slice::from_ref(issuer), token, CLUSTER, NOW * 1_000, DAY)
}

#[test]
fn tokens_of_each_algorithm_name_their_holder() {
    for signer in [Signer::ed(), Signer::ec(), Signer::rsa()] {
        let issuer = issuer(&[signer.jwk("k1")]);
        let header = json!({ "alg": signer.algorithm(), "typ": "JWT", "kid": "k1" });
        let token = signer.token(&header, &claims());
        let expected = VerifiedToken {
            principal: "token/corp/alice".into(),
            subjects: vec!["token/corp/alice".into(), "token-id/corp/t1".into()],
            expires_ms: (NOW + 3_600) * 1_000,
        };
        assert_eq!(check(&issuer, &token), Ok(expected), "{}", signer.algorithm());
        // One changed character of header, claims or signature.
        for part in 0..3 {
            let start: usize = token.split('.').take(part).map(|it| it.len() + 1).sum();
            let mut bytes = token.clone().into_bytes();
            let at = start + 5;
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).expect("text");
            assert!(check(&issuer, &changed).is_err(), "{} part {part}", signer.algorithm());
        }
    }
}

#[test]
fn an_issued_token_is_accepted() {
    let key = SigningKey::create().expect("a key");
    let issuer = Issuer::new("ostraca", "ostraca", &key.jwks()).expect("an issuer");
    let claims = Claims {
        iss: "ostraca".into(),
        sub: "shop".into(),
        aud: CLUSTER.to_string(),
        iat: NOW,
        exp: NOW + 60,
        jti: "1".into(),
    };
    let token = key.issue(&claims).expect("issued");
    assert_eq!(check(&issuer, &token).expect("valid").principal, "token/ostraca/shop");
    let again = SigningKey::from_pkcs8(key.pkcs8()).expect("the same key");
    assert_eq!(again.jwks(), key.jwks());
    let other = SigningKey::create().expect("a key").issue(&claims).expect("issued");
    assert!(matches!(check(&issuer, &other), Err(TokenError::UnknownKey(_))));
}

#[test]
fn a_key_is_used_with_its_own_algorithm_only() {
    let (ed, ec, rsa) = (Signer::ed(), Signer::ec(), Signer::rsa());
    let issuer = issuer(&[ed.jwk("ed"), ec.jwk("ec"), rsa.jwk("rsa")]);
    let all = [(&ed, "ed"), (&ec, "ec"), (&rsa, "rsa")];
    for (signer, _) in all {
        for (key, kid) in all {
            let header = json!({ "alg": signer.algorithm(), "kid": kid });
            let token = signer.token(&header, &claims());
            let valid = signer.algorithm() == key.algorithm();
            match check(&issuer, &token) {
                Ok(_) => assert!(valid),
                Err(error) => {
                    assert!(matches!(error, TokenError::Algorithm { .. }) && !valid, "{error}")
                }
            }
        }
    }
    // No signature at all, and an HMAC with the public key as its secret.
    let unsigned = |alg: &str| {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.", part(&json!({ "alg": alg, "kid": "ed" })), part(&claims()))
    };
    for alg in ["none", "None", "HS256", "EdDSA"] {
        let refused = check(&issuer, &unsigned(alg)).expect_err(alg);
        let fitting = match alg {
            "HS256" => matches!(refused, TokenError::Algorithm { .. }),
            "EdDSA" => matches!(refused, TokenError::Signature),
            _ => matches!(refused, TokenError::Malformed(_)),
        };
        assert!(fitting, "{alg}: {refused}");
    }
}

#[test]
fn each_claim_is_checked() {
    let signer = Signer::ed();
    let issuer = issuer(&[signer.jwk("k1")]);
    let verified = |change: &Value| {
        let mut claims = claims();
        for (name, value) in change.as_object().expect("claims") {
            match value {
                Value::Null => drop(claims.as_object_mut().expect("claims").remove(name)),
                value => claims[name] = value.clone(),
            }
        }
        check(&issuer, &signer.token(&json!({ "alg": "EdDSA", "kid": "k1" }), &claims))
    };
    type Fits = fn(&TokenError) -> bool;
    let malformed: Fits = |error| matches!(error, TokenError::Malformed(_));
    let audience: Fits = |error| matches!(error, TokenError::Audience(CLUSTER));
    let subject: Fits = |error| matches!(error, TokenError::Subject(_));
    let table: [(Value, Fits); 20] = [
        (json!({ "iss": "https://login.example.org" }), |error| {
            matches!(error, TokenError::UnknownIssuer(_))
        }),
        (json!({ "iss": null }), malformed),
        (json!({ "aud": ClusterId(0xabd).to_string() }), audience),
        (json!({ "aud": [ClusterId(1).to_string()] }), audience),
        (json!({ "aud": null }), audience),
        (json!({ "exp": null }), malformed),
        (json!({ "exp": "tomorrow" }), malformed),
        (json!({ "exp": NOW }), |error| matches!(error, TokenError::Expired { .. })),
        (json!({ "exp": 0 }), |error| matches!(error, TokenError::Expired { .. })),
        (json!({ "exp": NOW + 86_400 + 61 }), |error| {
            matches!(error, TokenError::TooLongLived { .. })
        }),
        (json!({ "exp": 1e300 }), malformed),
        (json!({ "exp": 1e12 }), |error| matches!(error, TokenError::TooLongLived { .. })),
        (json!({ "nbf": NOW + 61 }), |error| matches!(error, TokenError::NotYetValid { .. })),
        (json!({ "sub": null }), malformed),
        (json!({ "sub": "" }), subject),
        (json!({ "sub": "a\u{7}b" }), subject),
        (json!({ "sub": "a*" }), subject),
        // Looks like "alice".
        (json!({ "sub": "a\u{200b}lice" }), subject),
        (json!({ "sub": "\u{202e}ecila" }), subject),
        (json!({ "jti": "x".repeat(MAX_ID_BYTES + 1) }), subject),
    ];
    for (change, fits) in table {
        let error = verified(&change).expect_err(&change.to_string());
        assert!(fits(&error), "{change}: {error:?}");
    }
    for (change, principal) in [
        (json!({}), "token/corp/alice"),
        (json!({ "aud": ["x", CLUSTER.to_string()] }), "token/corp/alice"),
        (json!({ "nbf": NOW + 59, "exp": NOW as f64 + 0.5 }), "token/corp/alice"),
        (json!({ "exp": NOW + 86_400 + 60 }), "token/corp/alice"),
        // A subject may have slashes: the issuer's name has none.
        (json!({ "sub": "auth0|1/2", "jti": null }), "token/corp/auth0|1/2"),
    ] {
        assert_eq!(verified(&change).map(|it| it.principal), Ok(principal.to_owned()), "{change}");
    }
}

#[test]
fn demands_and_kinds_that_are_unknown_are_refused() {
    let signer = Signer::ed();
    let issuer = issuer(&[signer.jwk("k1")]);
    let with = |more: Value| {
        let mut header = json!({ "alg": "EdDSA", "kid": "k1" });
        header.as_object_mut().expect("a header").extend(more.as_object().expect("more").clone());
        check(&issuer, &signer.token(&header, &claims()))
    };
    for good in [json!({}), json!({ "typ": "JWT" }), json!({ "typ": "at+jwt" })] {
        with(good).expect("accepted");
    }
    for bad in [json!({ "crit": ["b64"], "b64": false }), json!({ "typ": "logout+jwt" })] {
        assert!(matches!(with(bad), Err(TokenError::Malformed(_))));
    }
}

#[test]
fn a_token_finds_its_key_by_id() {
    let (one, two) = (Signer::ed(), Signer::ed());
    let both = issuer(&[one.jwk("1"), two.jwk("2")]);
    let token = |signer: &Signer, header: Value| signer.token(&header, &claims());
    assert!(check(&both, &token(&two, json!({ "alg": "EdDSA", "kid": "2" }))).is_ok());
    let wrong = check(&both, &token(&two, json!({ "alg": "EdDSA", "kid": "1" })));
    assert_eq!(wrong, Err(TokenError::Signature));
    for header in [json!({ "alg": "EdDSA" }), json!({ "alg": "EdDSA", "kid": "3" })] {
        let refused = check(&both, &token(&two, header.clone()));
        assert!(matches!(refused, Err(TokenError::UnknownKey(_))), "{header}: {refused:?}");
    }
    // With one key, no id is needed.
    assert!(check(&issuer(&[one.jwk("1")]), &token(&one, json!({ "alg": "EdDSA" }))).is_ok());
}

#[test]
fn unusable_keys_of_an_issuer_are_refused_or_left_out() {
    let new = |keys: &[Value]| Issuer::new("corp", "c", &json!({ "keys": keys }).to_string());
    let good = Signer::ed().jwk("good");
    let mut encryption = Signer::rsa().jwk("encryption");
    encryption["use"] = "enc".into();
    let mut other = Signer::rsa().jwk("other");
    other["alg"] = "RS512".into();
    let unknown = json!({ "kty": "OKP", "crv": "X448", "kid": "x", "x": "AA" });
    assert!(new(&[encryption.clone(), other.clone(), unknown, good.clone()]).is_ok());
    let mut short = good.clone();
    short["x"] = "AAAA".into();
    let small = json!({ "kty": "RSA", "n": URL_SAFE_NO_PAD.encode([3; 128]), "e": "AQAB" });
    let many: Vec<_> = (0..=MAX_KEYS).map(|at| Signer::ed().jwk(&at.to_string())).collect();
    for (keys, why) in [
        (vec![encryption, other], "no key for EdDSA"),
        (vec![], "no key for EdDSA"),
        (vec![short], "length is wrong"),
        (vec![small], "2,048 to 8,192 bits"),
        (vec![good.clone(), good], "same `kid`: good"),
        (many, "limit is 32"),
    ] {
        let error = new(&keys).expect_err(why);
        assert!(error.contains(why), "{error}");
    }
    let error = Issuer::new("corp", "c", "[]").expect_err("no set");
    assert!(error.contains("not a JSON Web Key Set"), "{error}");
}

#[test]
fn garbage_is_refused_without_a_panic() {
    let issuer = issuer(&[Signer::ed().jwk("k")]);
    let long = "a".repeat(MAX_TOKEN_BYTES + 1);
    for text in
        ["", ".", "..", "...", "a.b.c", "e30.e30.", "e30.e30.e30", "\u{0}.\u{0}.\u{0}", &long]
    {
        assert!(check(&issuer, text).is_err(), "{text:?}");
    }
    assert_eq!(check(&issuer, &long), Err(TokenError::TooLarge(MAX_TOKEN_BYTES + 1)));
}
