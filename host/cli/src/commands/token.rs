//! `ostraca token`: tokens of the cluster's own authority.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ostraca_ca::tokens::{self, ISSUER};
use ostraca_client::Profile;
use ostraca_codes::codes;
use ostraca_core::ids::ClusterId;
use ostraca_token::{Claims, SigningKey};
use ostraca_wire::identity::{IdentityError, Principal, PrincipalKind, TrustRoot, files};
use serde_json::json;

use crate::args::{self, Global, IssueToken, OutputFormat, TokenCommand};
use crate::failure::{Exit, Failure};
use crate::output;

/// The longest time to live of a token; a policy permits no more.
const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3_600);

pub(crate) fn run(global: &Global, args: &args::Token) -> Result<Exit, Failure> {
    match &args.what {
        TokenCommand::Issue(args) => issue(global, args)?,
        TokenCommand::Key(args) => {
            let (_, _, key) = authority(&args.ca)?;
            let jwks = key.jwks();
            match global.output {
                OutputFormat::Table => output::text(&format!(
                    "[issuers.{ISSUER}]\nissuer = \"{ISSUER}\"\njwks = '''{jwks}'''\n"
                )),
                OutputFormat::Json => output::json(&json!({ "issuer": ISSUER, "jwks": jwks })),
            }
        }
    }
    Ok(Exit::Done)
}

/// The certificate of the authority, its cluster, and its key for tokens.
fn authority(directory: &Path) -> Result<(String, ClusterId, SigningKey), Failure> {
    let help = "--ca is the directory `ca` that the first node's `ostraca init` created";
    let invalid = |error: IdentityError| {
        Failure::usage(codes::INVALID_IDENTITY, error.to_string()).help(help)
    };
    let pem = files::read(&directory.join("ca.pem")).map_err(invalid)?;
    let cluster = TrustRoot::from_pem(&pem).map_err(invalid)?.cluster;
    Ok((pem, cluster, tokens::signing_key(directory).map_err(invalid)?))
}

/// Signs a token for token/ostraca/NAME.
pub(super) fn sign(
    key: &SigningKey,
    cluster: ClusterId,
    name: &str,
    ttl: Duration,
) -> Result<(String, Claims), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let claims = Claims {
        iss: ISSUER.into(),
        sub: name.into(),
        aud: cluster.to_string(),
        iat: now.as_secs(),
        exp: (now + ttl).as_secs(),
        jti: format!("{:032x}", rand::random::<u128>()),
    };
    let failed = |error: ostraca_token::SigningKeyError| {
        Failure::unexpected(codes::INVALID_IDENTITY, error.to_string())
    };
    let token = key.issue(&claims).map_err(failed)?;
    Ok((token, claims))
}

fn issue(global: &Global, args: &IssueToken) -> Result<(), Failure> {
    let (pem, cluster, key) = authority(&args.ca)?;
    // A holder's name follows the rules for names in certificates.
    Principal::new(cluster, PrincipalKind::Client, &args.name)
        .map_err(|error| Failure::usage(codes::INVALID_IDENTITY, error.to_string()))?;
    if args.ttl.is_zero() || args.ttl > MAX_TTL {
        let text = "--ttl must be more than 0 and at most 30 days";
        return Err(Failure::usage(codes::INVALID_VALUE, text));
    }
    let (token, claims) = sign(&key, cluster, &args.name, args.ttl)?;
    let (principal, id) =
        (format!("token/{ISSUER}/{}", args.name), format!("token-id/{ISSUER}/{}", claims.jti));
    let expires_ms = claims.exp * 1_000;
    let mut written = Vec::new();
    if let Some(out) = &args.out {
        fs::create_dir_all(out).map_err(|error| Failure::file("create", out, &error))?;
        let (file, profile) =
            (out.join(format!("{}.token", args.name)), out.join(format!("{}.toml", args.name)));
        // A new token replaces the former one, under the name that the profile has.
        files::write(&file, &token)
            .map_err(|error| Failure::usage(codes::FILE_ERROR, error.to_string()))?;
        let name = format!("{}.token", args.name).into();
        Profile::with_token(args.address.clone(), cluster, &pem, name).save(&profile)?;
        written = vec![file.display().to_string(), profile.display().to_string()];
    }
    match global.output {
        OutputFormat::Table if written.is_empty() => output::line(&token),
        OutputFormat::Table => output::line(&format!(
            "issued a token for {principal}, valid until {}: {}",
            output::wall(expires_ms),
            written.join(", ")
        )),
        OutputFormat::Json => output::json(&json!({
            "principal": principal, "credential": id, "cluster": cluster.to_string(),
            "expires": output::wall(expires_ms), "expires_unix_ms": expires_ms,
            "token": if written.is_empty() { Some(token) } else { None }, "files": written,
        })),
    }
    Ok(())
}
