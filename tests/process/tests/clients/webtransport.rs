//! The TypeScript client over WebTransport and over HTTP/3: on a page of its own origin, at gateways with a certificate
//! that no authority has signed.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ostraca_process_tests::artifacts;
use rcgen::{CertificateParams, KeyPair, PublicKeyData as _};
use ring::digest::{SHA256, digest};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use crate::Setting;
use crate::callers::Caller;
use crate::conversations::Conversation;
use crate::faults::survive;

/// A certificate as browsers want it: ECDSA, and valid for at most 14 days.
pub(crate) struct Certificate {
    pem: PathBuf,
    key: PathBuf,
    /// SHA-256, in hexadecimal.
    pub(crate) hash: String,
    /// SHA-256 of its public key, in base64.
    public_key: String,
    /// Whether the gateways serve HTTP/3 and WebTransport.
    udp: bool,
}

impl Certificate {
    /// The certificate of one test: tests run at the same time.
    fn make(name: &str) -> Result<Self> {
        let dir = artifacts::scratch(&format!("certificates/{name}"))?;
        let (pem, key) = (dir.join("https.pem"), dir.join("https.key"));
        let pair = KeyPair::generate()?;
        let mut params = CertificateParams::new(["localhost".to_owned()])?;
        params.not_before = OffsetDateTime::now_utc() - Duration::hours(1);
        params.not_after = params.not_before + Duration::days(13);
        let made = params.self_signed(&pair)?;
        std::fs::write(&pem, made.pem())?;
        std::fs::write(&key, pair.serialize_pem())?;
        let hash = digest(&SHA256, made.der());
        let hash = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let public_key = STANDARD.encode(digest(&SHA256, &pair.subject_public_key_info()));
        Ok(Self { pem, key, hash, public_key, udp: true })
    }

    /// The settings of a gateway with it.
    pub(crate) fn settings(&self) -> String {
        format!("certificate = {:?}\nkey = {:?}\nhttp3 = {}", self.pem, self.key, self.udp)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pages_hear_the_same_over_webtransport() -> Result<()> {
    let certificate = Certificate::make("webtransport")?;
    let mut setting = Setting::start_with("webtransport", Some(&certificate)).await?;
    let page = Caller::page()?;
    page.connect("all", &setting.gateways).await?;
    let it = Conversation { caller: &page, client: "all", prefix: "w".into() };
    it.all().await?;
    survive(&mut setting, vec![("TypeScript over WebTransport", page.clone())], (&[1, 0], &[2]))
        .await?;

    // No other way leads to these gateways.
    let mut other = setting.gateways.clone();
    other.certificate = Some(certificate.hash.chars().rev().collect());
    page.connect("other", &other).await?;
    let add = crate::faults::add("other").keyed().within(5_000);
    let (outcome, code) = page.call("other", add).await?.err().context("another certificate")?;
    ensure!(outcome == "unknown" && code == "connection-lost", "{outcome}, {code}");
    setting.admin.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pages_use_http_where_webtransport_is_blocked() -> Result<()> {
    let certificate = Certificate { udp: false, ..Certificate::make("blocked")? };
    let setting = Setting::start_with("blocked", Some(&certificate)).await?;
    let page = Caller::page()?;
    // The page does not know the certificate, and its browser accepts any.
    let gateways = crate::Gateways { certificate: Some(String::new()), ..setting.gateways.clone() };
    page.connect("all", &gateways).await?;
    let it = Conversation { caller: &page, client: "all", prefix: "b".into() };
    it.results().await?;
    it.many().await?;
    it.channels().await?;
    setting.admin.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pages_hear_the_same_over_http_3() -> Result<()> {
    let certificate = Certificate::make("http3")?;
    let setting = Setting::start_with("http3", Some(&certificate)).await?;
    let origins = setting.gateways.http.iter().map(|address| address.replace("https://", ""));
    let page = Caller::page_with(&[
        ("QUIC", origins.collect::<Vec<_>>().join(",")),
        ("KEY", certificate.public_key.clone()),
    ])?;
    let gateways = crate::Gateways { certificate: None, ..setting.gateways.clone() };
    page.connect("all", &gateways).await?;
    let it = Conversation { caller: &page, client: "all", prefix: "q".into() };
    it.results().await?;
    it.refusals().await?;
    it.many().await?;
    it.channels().await?;
    let protocols = page.protocols().await?;
    ensure!(protocols == json!(["h3"]), "{protocols}");
    setting.admin.close().await;
    Ok(())
}
