//! Who sends a request: the holder of its token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use ostraca_codes::codes;
use ostraca_wire::clock::BootInstant;
use ostraca_wire::server::{Server, Service, TokenRefused};
use tokio::sync::watch;

use crate::problem::Problem;

/// Maximum number of tokens that are remembered; beyond it, all are checked anew.
const KNOWN: usize = 10_000;
/// The principal of requests without a token. In a policy, only a grant that names it, and no pattern, gives it a role.
pub const ANONYMOUS: &str = "anonymous";
/// Maximum length of a token in bytes.
pub(crate) const MAX_TOKEN: usize = 8 << 10;

/// Checks tokens, and remembers those that are valid until the policy or the revocations change.
pub(crate) struct Authenticator<S: Service> {
    server: Arc<Server<S>>,
    changes: Option<watch::Receiver<u64>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The changes after which these tokens were checked.
    seen: u64,
    /// By the digest of the token.
    tokens: HashMap<[u8; 32], Holder>,
}

/// The holder of a valid token.
#[derive(Clone)]
pub(crate) struct Holder {
    pub(crate) principal: Arc<str>,
    /// What a revocation may name.
    pub(crate) subjects: Vec<String>,
    checked: BootInstant,
    valid_for: Duration,
}

impl Holder {
    /// The time until the token expires.
    pub(crate) fn remaining(&self) -> Duration {
        self.valid_for.saturating_sub(self.checked.elapsed())
    }
}

impl<S: Service> Authenticator<S> {
    pub(crate) fn new(server: Arc<Server<S>>) -> Self {
        let changes = server.service().access_changes();
        Self { server, changes, known: Mutex::default() }
    }

    /// Who sends a request.
    ///
    /// # Errors
    /// `unauthenticated`, `invalid-token`, `token-expired`, `revoked` or `not-ready`.
    pub(crate) fn holder(&self, headers: &HeaderMap) -> Result<Holder, Problem> {
        if !headers.contains_key(AUTHORIZATION) && self.admits_anonymous()? {
            return self.anonymous();
        }
        let token = bearer(headers)?;
        let digest = *blake3::hash(token.as_bytes()).as_bytes();
        let seen = self.changes.as_ref().map_or(0, |changes| *changes.borrow());
        if let Some(holder) = self.remembered(&digest, seen) {
            if !holder.remaining().is_zero() {
                return Ok(holder);
            }
            let text = "the token has expired";
            return Err(unauthorized(codes::TOKEN_EXPIRED, text.into(), "get another token"));
        }
        let service = self.server.service();
        let checked = BootInstant::now();
        let holder = service.check_token(token).map_err(|refused| match refused {
            TokenRefused::Invalid(why) => {
                unauthorized(codes::INVALID_TOKEN, why, "get another token")
            }
            TokenRefused::NotReady(why) => {
                Problem::refused(StatusCode::SERVICE_UNAVAILABLE, codes::NOT_READY, why)
                    .help("try again, or use another node")
            }
        })?;
        let client = self.server.local_client(&holder.principal, holder.subjects.clone());
        service.check_connection(&client).map_err(|why| {
            unauthorized(codes::REVOKED, why, "get another token from an operator of the cluster")
        })?;
        let (principal, subjects) = (holder.principal.into(), holder.subjects);
        let holder = Holder { principal, subjects, checked, valid_for: holder.valid_for };
        self.remember(digest, seen, holder.clone());
        Ok(holder)
    }

    /// Whether the policy names callers without a token.
    ///
    /// # Errors
    /// `access-unknown`.
    pub(crate) fn admits_anonymous(&self) -> Result<bool, Problem> {
        self.server.service().admits_anonymous().map_err(Problem::of)
    }

    /// The sender of a request without a token, if the policy names it.
    fn anonymous(&self) -> Result<Holder, Problem> {
        let subjects = vec![ANONYMOUS.to_owned()];
        let client = self.server.local_client(ANONYMOUS, subjects.clone());
        let service = self.server.service();
        service
            .check_connection(&client)
            .map_err(|why| unauthorized(codes::REVOKED, why, "send a token"))?;
        let (principal, checked) = (ANONYMOUS.into(), BootInstant::now());
        Ok(Holder { principal, subjects, checked, valid_for: Duration::MAX })
    }

    fn remembered(&self, digest: &[u8; 32], seen: u64) -> Option<Holder> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.seen != seen {
            known.tokens.clear();
            known.seen = seen;
        }
        known.tokens.get(digest).cloned()
    }

    fn remember(&self, digest: [u8; 32], seen: u64, holder: Holder) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Checked under rows that may have changed meanwhile.
        if known.seen != seen {
            return;
        }
        if known.tokens.len() >= KNOWN {
            known.tokens.clear();
        }
        known.tokens.insert(digest, holder);
    }
}

fn unauthorized(code: ostraca_codes::Code, text: String, help: &str) -> Problem {
    Problem::refused(StatusCode::UNAUTHORIZED, code, text).help(help)
}

/// The token in `authorization: Bearer …`.
fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let missing = |text: &str| {
        let help = "send `authorization: Bearer TOKEN`, with a token of `ostraca token issue` or of an issuer in the policy";
        unauthorized(codes::UNAUTHENTICATED, text.into(), help)
    };
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(missing("the request has no token, or several"));
    };
    let value = value.to_str().map_err(|_| missing("the token is not text"))?;
    match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
            let token = token.trim();
            if token.is_empty() || token.len() > MAX_TOKEN {
                return Err(missing("the token is empty or too long"));
            }
            Ok(token)
        }
        _ => Err(missing("`authorization` has no bearer token")),
    }
}
