//! The tutorial, as its reader does it: its files, its commands, and its page in Chromium, with a kill in the middle.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ostraca_process_tests::artifacts;
use ostraca_test_servers::browser::{Script, chromium, install_from_npm};
use ostraca_test_servers::free_port;

/// How long a build and a deployment may take.
const LIMIT: Duration = Duration::from_secs(300);

/// The blocks of code in one language, in order; those of commands have none.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    // Every second part is within fences.
    let inside = text.split("```").skip(1).step_by(2);
    inside.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

fn shell(dir: &Path, text: &str) -> Result<String> {
    let ostraca = artifacts::ostraca()?;
    let programs = ostraca.parent().context("a directory")?;
    let path = format!("{}:{}", programs.display(), std::env::var("PATH")?);
    let output =
        Command::new("bash").arg("-ec").arg(text).current_dir(dir).env("PATH", path).output()?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}\n{printed}\n{errors}");
    Ok(printed)
}

/// A process that is killed with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `ostraca dev account`, and waits until it has deployed.
fn dev(dir: &Path) -> Result<Running> {
    let mut process = Command::new(artifacts::ostraca()?)
        .args(["dev", "account"])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let stdout = process.stdout.take().context("a pipe")?;
    let running = Running(process);
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // It is read to the end, since the node would wait.
            let _ = sender.send(line);
        }
    });
    let until = Instant::now() + LIMIT;
    loop {
        let line = lines.recv_timeout(until.saturating_duration_since(Instant::now()));
        let line = line.context("`ostraca dev` does not deploy")?;
        ensure!(!line.contains("not deployed"), "{line}");
        if line.contains("account: deployed") {
            return Ok(running);
        }
    }
}

/// The page's files: a project's tools may be those of an earlier run.
fn project(dir: &Path, tutorial: &str) -> Result<()> {
    let block = |language: &str| -> Result<String> {
        let found = blocks(tutorial, language);
        Ok((*found.first().with_context(|| format!("no {language}"))?).to_owned())
    };
    let first = blocks(tutorial, "").first().copied().context("a command")?.to_owned();
    ensure!(first == "ostraca new account --lang ts\n", "{first}");
    shell(dir, &first)?;
    let account = dir.join("account");
    let tools = artifacts::scratch("tutorial")?.join("node_modules");
    if tools.exists() {
        fs::rename(&tools, account.join("node_modules"))?;
    }
    fs::write(account.join("src/entity.ts"), block("ts")?)?;
    let manifest = account.join("entity.toml");
    fs::write(&manifest, fs::read_to_string(&manifest)? + &block("toml")?)?;
    let page = dir.join("page");
    fs::create_dir_all(&page)?;
    fs::write(page.join("index.html"), block("html")?)?;
    fs::write(page.join("page.js"), block("js")?)?;
    Ok(())
}

#[test]
fn the_tutorial_works_as_it_is_written() -> Result<()> {
    let client = artifacts::scratch("typescript")?;
    install_from_npm(&artifacts::root().join("host/client/typescript"), &client);
    shell(&client, "node_modules/.bin/tsc")?;
    let playwright = artifacts::scratch("browser")?;
    install_from_npm(&artifacts::root().join("tests/process/browser"), &playwright);

    let tutorial = fs::read_to_string(artifacts::root().join("docs/tutorial.md"))?;
    let home = tempfile::tempdir()?;
    let dir = home.path();
    project(dir, &tutorial)?;
    let mut node = Some(dev(dir)?);

    // What the comments say is what the commands print.
    let sends = blocks(&tutorial, "").into_iter().find(|it| it.contains("ostraca send"));
    for line in sends.context("the calls")?.lines() {
        let (command, expected) = line.split_once(" # ").context("a comment")?;
        let printed = shell(dir, &format!("{command} 2>&1 || true"))?;
        let expected = match expected.strip_prefix("refused: ") {
            Some("not an integer") => "schema-mismatch",
            Some(code) => code,
            None => expected,
        };
        ensure!(printed.starts_with(expected), "{command}: {printed} instead of {expected}");
    }
    let port = free_port().to_string();
    let policy = blocks(&tutorial, "").into_iter().find(|it| it.contains("policy set"));
    shell(dir, &policy.context("the policy")?.replace("8000", &port))?;
    shell(
        dir,
        &format!(
            "cp -r {} page/ostraca && cp .ostraca/http-address page/gateway",
            client.join("dist").display()
        ),
    )?;
    let mut serve = Command::new("python3");
    serve.args(["-m", "http.server", &port, "--bind", "127.0.0.1", "--directory", "page"]);
    serve.current_dir(dir).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Running(serve.spawn()?);
    until_listening(&port)?;

    let environment = [
        ("CHROMIUM", chromium().display().to_string()),
        ("PAGE", format!("http://localhost:{port}/")),
    ];
    let mut script = Script::start(&playwright, "tutorial.mjs", &environment);
    while let Some(wish) = script.next_wish() {
        match wish.as_str() {
            // SIGKILL.
            "kill" => drop(node.take()),
            "start" => node = Some(dev(dir)?),
            other => bail!("the script asks for {other:?}"),
        }
        script.done();
    }
    drop(node);
    let tools: PathBuf = artifacts::scratch("tutorial")?.join("node_modules");
    if !tools.exists() {
        shell(dir, &format!("mv account/node_modules {}", tools.display()))?;
    }
    Ok(())
}

fn until_listening(port: &str) -> Result<()> {
    for _ in 0..600 {
        if std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    bail!("nothing listens on {port}")
}
