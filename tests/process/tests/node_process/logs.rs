//! A node's log for programs, and `ostraca top` on a terminal.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ostraca_client::{CallOptions, Client, Entity};
use ostraca_process_tests::node_dir::{deploy_example, deploy_guest};
use ostraca_process_tests::{NodeDir, NodeProcess, artifacts};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(60);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_lines_of_a_guest_name_the_trace() -> Result<()> {
    let home = NodeDir::init("json-log")?;
    let node = NodeProcess::start_as(&home, |command| {
        command.env("OSTRACA_LOG_FORMAT", "json");
    })?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_guest(&client, "misbehaving", "").await?;
    let entity = Entity::new("misbehaving", "a\n{\"forged\":1}");
    // Sampled or not.
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-00");
    let options = CallOptions { traceparent, ..CallOptions::default() };
    let session = client.session();
    session.send(&entity, "control", "\"log\"", &options).await?;
    session.send(&entity, "control", "\"log\"", &CallOptions::default()).await?;
    client.close().await;
    let log = node.log();
    let lines =
        log.lines().map(|line| serde_json::from_str::<Value>(line).context(line.to_owned()));
    let lines = lines.collect::<Result<Vec<_>>>()?;
    ensure!(lines.iter().all(|line| line["timestamp"].is_string() && line["level"].is_string()));
    let of_guest: Vec<_> = lines.iter().filter(|it| it["target"] == "ostraca::guest").collect();
    ensure!(of_guest.len() == 2 && of_guest.iter().all(|it| it["type"] == "misbehaving"), "{log}");
    ensure!(of_guest[0]["trace_id"] == TRACE && of_guest[1]["trace_id"].is_null(), "{log}");
    node.stop()?;
    Ok(())
}

/// Reads what is shown until it has all of these texts.
fn read_until(output: &mut impl Read, shown: &mut String, texts: &[&str]) -> Result<()> {
    let began = Instant::now();
    let mut bytes = [0; 4096];
    while !texts.iter().all(|text| shown.contains(text)) {
        let count = output.read(&mut bytes)?;
        ensure!(count > 0 && began.elapsed() < TIMEOUT, "{texts:?} not shown in {shown:?}");
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_shows_a_screen_and_leaves_the_terminal() -> Result<()> {
    let home = NodeDir::init("top")?;
    let node = NodeProcess::start(&home)?;
    let profile = home.profile(node.address)?;
    let file = home.dir().join("top.toml");
    profile.save(&file)?;
    let client = Client::connect(profile).await?;
    deploy_example(&client, "counter").await?;
    let load = tokio::spawn(async move {
        let session = client.session();
        loop {
            let _ = session.command(&Entity::new("counter", "hot"), "add", "1").await;
        }
    });
    let program = artifacts::ostraca()?;
    let shown = tokio::task::spawn_blocking(move || {
        let command = format!(
            "stty rows 40 cols 140; exec {} top --interval 1s --profile {}",
            program.display(),
            file.display()
        );
        // A terminal of its own, which it connects with its pipes.
        let mut script = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (mut keys, mut screen) =
            (script.stdin.take().context("a pipe")?, script.stdout.take().context("a pipe")?);
        let mut shown = String::new();
        let wanted = ["\u{1b}[?1049h", "Nodes", "messages/s", "counter/hot"];
        read_until(&mut screen, &mut shown, &wanted)?;
        keys.write_all(b"q")?;
        read_until(&mut screen, &mut shown, &["\u{1b}[?1049l"])?;
        // It ends with its input.
        drop(keys);
        let status = script.wait()?;
        ensure!(status.success(), "{status}: {shown}");
        Ok(shown)
    });
    let shown = shown.await??;
    // Blanks are not drawn.
    ensure!(shown.contains("Slowest"), "{shown}");
    load.abort();
    node.stop()?;
    Ok(())
}
