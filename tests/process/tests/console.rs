//! The console in Chromium, with a cluster of three real nodes: log-in, drain, messages, hostile texts, another origin,
//! a phone, a killed node and one that hangs. `SCREENSHOTS=DIR` keeps pictures of it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use ostraca_client::{
    CallOptions, Client, DeadLetterAction, DeadLettersRequest, Entity, MessageKind, Rollout,
};
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{call, until};
use ostraca_process_tests::http::issue_token;
use ostraca_process_tests::node_dir::{deploy_example, deploy_guest};
use ostraca_process_tests::{Cluster, artifacts};
use ostraca_test_servers::browser::{Script, chromium, install_from_npm};
use ostraca_wire::proto::PolicyRequest;
use serde_json::json;

const SHARDS: u32 = 4_096;
const ENTITIES: usize = 10_000;
const LETTERS: usize = 5;
/// Commands in progress at the same time.
const AT_ONCE: usize = 250;

/// A running `ostraca dev`, which is killed with the value.
struct Dev {
    process: Child,
    _dir: tempfile::TempDir,
}

impl Dev {
    /// Starts it, and returns the log-in link that it prints.
    fn start() -> Result<(Self, String)> {
        let dir = tempfile::tempdir()?;
        let mut process = Command::new(artifacts::ostraca()?)
            .arg("dev")
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = process.stdout.take().context("a pipe")?;
        let dev = Self { process, _dir: dir };
        for line in BufReader::new(stdout).lines() {
            if let Some((_, link)) = line?.split_once("console, with a link that works once: ") {
                return Ok((dev, link.to_owned()));
            }
        }
        bail!("`ostraca dev` prints no link")
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Lets two holders of tokens in, and returns their tokens.
async fn tokens(admin: &Client, cluster: &Cluster) -> Result<[String; 2]> {
    let home = cluster.home(0);
    let (issuer, operator) = issue_token(home, "operator")?;
    let (_, viewer) = issue_token(home, "viewer")?;
    let grant = |principal: &str, role: &str| {
        format!("[[grants]]\nprincipals = [\"{principal}\"]\nroles = [\"{role}\"]\n")
    };
    let text = [
        grant("client/admin", "operator"),
        grant("token/ostraca/operator", "operator"),
        grant("token/ostraca/viewer", "viewer"),
        issuer,
    ]
    .concat();
    admin.policy(PolicyRequest { text: Some(text), ..PolicyRequest::default() }).await?;
    Ok([operator, viewer])
}

async fn create(client: &Client, count: usize) -> Result<()> {
    let session = client.session();
    let ids: Vec<_> = (0..count).map(|at| Entity::new("counter", format!("c{at:05}"))).collect();
    for part in ids.chunks(AT_ONCE) {
        try_join_all(part.iter().map(|entity| session.command(entity, "add", "1"))).await?;
    }
    Ok(())
}

/// The numbers of the dead letters of `misbehaving/sender`.
async fn letters(client: &Client) -> Result<Vec<u64>> {
    let request = DeadLettersRequest { r#type: "misbehaving".into(), ..Default::default() };
    let letters = client.dead_letters(request).await?.dead_letters;
    Ok(letters.iter().filter_map(|it| it.tell.as_ref()).map(|tell| tell.number).collect())
}

/// Sends tells that their target refuses until it is opened, and waits until they are dead letters. The target is open
/// afterwards.
async fn make_dead_letters(client: &Client) -> Result<()> {
    deploy_guest(client, "misbehaving", "[grants]\ntell = [\"misbehaving\"]\n").await?;
    for number in 0..LETTERS {
        let body = json!({
            "of": "misbehaving", "id": "target", "method": "note_if_open",
            "body": format!("\"{number}\""), "count": 1,
        });
        call(client, MessageKind::Command, "sender", "tell", body).await?;
    }
    until("all are dead letters", async || {
        Ok((letters(client).await?.len() == LETTERS).then_some(()))
    })
    .await?;
    call(client, MessageKind::Command, "target", "open", json!(null)).await?;
    Ok(())
}

/// Resends the second of those that are left.
async fn resend_second(client: &Client) -> Result<()> {
    let second = letters(client).await?[1];
    let (session, sender) = (client.session(), Entity::new("misbehaving", "sender"));
    let (resend, options) = (DeadLetterAction::Resend, CallOptions::default());
    session.handle_dead_letters(&sender, resend, &[second], &options).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_shows_what_happens_and_sends_messages() -> Result<()> {
    let options = Options {
        http: true,
        shards: SHARDS,
        proxied: false,
        settings: "lease = \"4 s\"\n[entities]\ntell-attempts = 1\n".into(),
        ..Options::three("console")
    };
    let mut cluster = Cluster::start(&options).await?;
    let admin = Client::connect(cluster.profile(0)).await?;
    deploy_example(&admin, "counter").await?;
    // The same component, with another manifest.
    let manifest = artifacts::manifest("counter")? + "\n[channels]\nkeep-items = 10\n";
    admin.deploy_inactive(&manifest, artifacts::component("counter")?).await?;
    make_dead_letters(&admin).await?;
    deploy_guest(&admin, "rubbish", "[channels]\nkeep-items = 10\n").await?;
    let [operator, viewer] = tokens(&admin, &cluster).await?;

    // Texts of entities that would be markup, or would deceive whoever reads them.
    let image = "<img src=x onerror=window.hacked=1>";
    let script = "\"><script>window.hacked=1</script>\u{202e}evil";
    let session = admin.session();
    session.command(&Entity::new("counter", image), "add", "1").await?;
    session.command(&Entity::new("counter", script), "add", "1").await?;
    let keys = Entity::new("rubbish", "keys");
    session.command(&keys, "write-unlisted", "").await?;
    session.command(&keys, "emit", "").await?;
    let hostile = json!([
        {"type": "counter", "id": image, "shown": [image]},
        {"type": "counter", "id": script, "shown": ["\"><script>window.hacked=1</script>\u{fffd}evil"]},
        {"type": "rubbish", "id": "keys", "shown": ["a key with", "<img src=x onerror=window.hacked=2>"]},
        {"type": "rubbish", "id": "fails", "call": "fail", "shown": ["panicked", "<img src=x onerror=window.hacked=2>"]},
    ]);
    let began = Instant::now();
    // With `alice`, those above, and two with the dead letters.
    create(&admin, ENTITIES - 6).await?;
    eprintln!("  {ENTITIES} entities in {:?}", began.elapsed());

    let urls: Vec<_> =
        (0..3).map(|node| format!("http://{}", cluster.http_address(node))).collect();
    let (_dev, link) = Dev::start()?;
    let dev = link.split("/console/").next().unwrap_or_default().to_owned();
    let browser = chromium();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser");
    let installed = artifacts::scratch("browser")?;
    install_from_npm(&folder, &installed);
    let environment = [
        ("CHROMIUM", browser.display().to_string()),
        ("URLS", json!(urls.iter().chain([&dev]).collect::<Vec<_>>()).to_string()),
        ("OPERATOR", operator),
        ("VIEWER", viewer),
        ("LINK", link),
        ("SHARDS", SHARDS.to_string()),
        ("ENTITIES", ENTITIES.to_string()),
        ("LETTERS", LETTERS.to_string()),
        ("HOSTILE", hostile.to_string()),
    ];
    let mut script = Script::start(&installed, "console.mjs", &environment);
    while let Some(wish) = script.next_wish() {
        match wish.as_str() {
            "kill" => cluster.kill_9(2)?,
            "pause-own" => cluster.pause(0)?,
            "resume-own" => cluster.resume(0)?,
            "advance" => {
                let further = Rollout { shards: Some(7), ..Rollout::default() };
                admin.roll_out("counter", Some(2), Some(further)).await?;
            }
            "resend-second" => resend_second(&admin).await?,
            other => bail!("the script asks for {other:?}"),
        }
        script.done();
    }
    admin.close().await;
    Ok(())
}
