//! The clients of all languages, in the same conversations with real clusters: what a caller gets does not depend on
//! the language that it is written in. And the typed calls that `ostraca client` writes.

mod callers;
mod conversations;
mod faults;
mod typed;
mod webtransport;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ostraca_client::Client;
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::http::issue_token;
use ostraca_process_tests::node_dir::{deploy_example, deploy_guest};
use ostraca_wire::proto::PolicyRequest;

use crate::callers::{Caller, Gateways};
use crate::conversations::Conversation;
use crate::webtransport::Certificate;

/// A cluster of three nodes with HTTP gateways, and what callers need.
pub(crate) struct Setting {
    pub(crate) cluster: Cluster,
    pub(crate) admin: Client,
    pub(crate) gateways: Gateways,
}

impl Setting {
    pub(crate) async fn start(name: &str) -> Result<Self> {
        Self::start_with(name, None).await
    }

    /// The same, whose gateways have this certificate.
    pub(crate) async fn start_with(name: &str, certificate: Option<&Certificate>) -> Result<Self> {
        let options = Options {
            http: true,
            http_settings: certificate.map_or_else(String::new, Certificate::settings),
            shards: 8,
            settings: "lease = \"2 s\"\n".into(),
            ..Options::three(name)
        };
        let mut cluster = Cluster::start(&options).await?;
        cluster.wait_settled().await?;
        let admin = cluster.client(0).await?;
        for example in ["counter", "account", "chat"] {
            deploy_example(&admin, example).await?;
        }
        deploy_guest(&admin, "misbehaving", "[limits]\nturn-time = \"10 s\"\n").await?;
        let home = cluster.home(0);
        let (issuer, token) = issue_token(home, "web")?;
        let policy = format!(
            "web-origins = [\"*\"]\n\
             [[grants]]\nprincipals = [\"client/admin\"]\nroles = [\"operator\"]\n\
             [[grants]]\nprincipals = [\"token/ostraca/web\"]\nroles = [\"client\"]\n{issuer}"
        );
        admin
            .policy(PolicyRequest { text: Some(policy), ..PolicyRequest::default() })
            .await
            .context("set the policy")?;
        let scheme = if certificate.is_some() { "https" } else { "http" };
        let address = |node| format!("{scheme}://{}", cluster.http_address(node));
        let gateways = Gateways {
            profile: cluster.profile(0),
            http: (0..cluster.len()).map(address).collect(),
            tokens: vec![token],
            certificate: certificate.map(|it| it.hash.clone()),
        };
        Ok(Self { cluster, admin, gateways })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_of_all_languages_hear_the_same() -> Result<()> {
    let setting = Setting::start("conversations").await?;
    for (number, (language, caller)) in Caller::all()?.into_iter().enumerate() {
        let started = Instant::now();
        caller.connect("all", &setting.gateways).await?;
        let prefix = "c".repeat(number + 1);
        let it = Conversation { caller: &caller, client: "all", prefix };
        it.all().await.context(language)?;
        println!("{language}: {:?}", started.elapsed());
    }
    setting.admin.close().await;
    Ok(())
}

/// How long something may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);
