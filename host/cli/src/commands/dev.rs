//! `ostraca dev`: a node for development that rebuilds and deploys on every save.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_ca::Ca;
use ostraca_client::{Client, Profile};
use ostraca_node::config::ClusterSettings;
use ostraca_node::{Config, InitOptions, Node, NodeError};
use ostraca_wire::identity::IdentityError;

use super::dev_http::{self, DevToken};
use super::{deploy, run};
use crate::args::{Dev, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::project::{Project, compile, watch};
use crate::{connection, output, quote};

/// Interval at which source files are checked for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

pub(crate) async fn run(global: &Global, args: &Dev) -> Result<Exit, Failure> {
    let mut stop = run::Stop::listen()?;
    // Report a wrong directory before a node is started.
    let project = args.dir.as_deref().map(Project::load).transpose()?;
    let (mut config, made) = settle(args)?;
    let port = SavedAddress::choose(args, &mut config);
    dev_http::choose(&args.data, &mut config);
    let mut node = tokio::select! {
        started = Node::start(config) => started?,
        () = stop.recv() => return Ok(Exit::Done),
    };
    let (profile, path) = profile(&args.data, &node)?;
    port.remember(&node);
    dev_http::remember(&args.data, &node);
    let client = match Client::connect(profile).await {
        Ok(client) => client,
        Err(error) => {
            // A running node must be stopped.
            node.stop(std::time::Duration::from_secs(1)).await;
            return Err(error.into());
        }
    };
    let token = DevToken::prepare(&args.data, &client).await;
    greet(global, args, &node, made, &path, &port, &token);
    let why = tokio::select! {
        () = stop.recv() => None,
        why = node.wait_for_failure() => Some(why),
        never = follow(args.dir.as_deref(), project, &client) => match never {},
        () = token.keep() => None,
    };
    connection::disconnect(client).await;
    run::finish(node, stop, why).await
}

/// Returns the node's configuration, and whether the node was initialised because there was none.
fn settle(args: &Dev) -> Result<(Config, bool), Failure> {
    let file = args.data.join("ostraca.toml");
    let made = !file.exists();
    if made {
        let options = InitOptions {
            cluster_name: "dev".into(),
            node: "dev".into(),
            listen: ([127, 0, 0, 1], 0).into(),
            shards: ostraca_node::init::DEFAULT_SHARDS,
            settings: ClusterSettings::default(),
            postgres: None,
            rows: None,
        };
        ostraca_node::init(&args.data, &options).map_err(|error| match error {
            NodeError::DirectoryNotEmpty(_) => Failure::from(error)
                .help("it contains no node: choose another directory with --data, or remove it"),
            error => error.into(),
        })?;
    }
    let mut config = Config::load(&file)?;
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    Ok((config, made))
}

/// The node's address, kept from one start to the next, so that other terminals and programs can keep using it.
struct SavedAddress {
    file: PathBuf,
    /// The previous address, if it is now in use.
    taken: Option<SocketAddr>,
}

impl SavedAddress {
    /// Uses the previous address if it is free, unless an address is given.
    fn choose(args: &Dev, config: &mut Config) -> Self {
        let file = args.data.join("address");
        let mut taken = None;
        if args.listen.is_none() && config.listen.port() == 0 {
            let before = std::fs::read_to_string(&file).ok();
            let before = before.and_then(|text| text.trim().parse::<SocketAddr>().ok());
            match before.filter(|before| before.ip() == config.listen.ip()) {
                // Only a probe: another process may still take the address, which the node then reports.
                Some(before) if UdpSocket::bind(before).is_ok() => config.listen = before,
                before => taken = before,
            }
        }
        Self { file, taken }
    }

    fn remember(&self, node: &Node) {
        if let Err(error) = std::fs::write(&self.file, format!("{}\n", node.address())) {
            tracing::warn!(%error, "failed to save the address for the next start");
        }
    }

    fn warn_if_changed(&self, node: &Node) {
        if let Some(taken) = self.taken {
            let text = format!("{taken} is in use, listening on {}", node.address());
            output::line(&text);
        }
    }
}

/// The profile in the data directory, with the node's current address.
fn profile(data: &Path, node: &Node) -> Result<(Profile, PathBuf), Failure> {
    let path = data.join("profile.toml");
    let mut address = node.address();
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let addresses = vec![address.to_string()];
    let profile = match Profile::load(&path) {
        Ok(profile) => Profile { addresses, ..profile },
        Err(_) => {
            let bad = |error: IdentityError| Failure::from(NodeError::from(error));
            let ca = Ca::load(&data.join("ca")).map_err(bad)?;
            let admin = ca.issue_client("admin").map_err(bad)?;
            Profile::new(addresses, ca.certificate_pem(), &admin)
        }
    };
    profile.save(&path)?;
    Ok((profile, path))
}

fn greet(
    global: &Global,
    args: &Dev,
    node: &Node,
    made: bool,
    profile: &Path,
    port: &SavedAddress,
    token: &DevToken,
) {
    output::line(&run::ready(node));
    if global.output == OutputFormat::Json {
        return;
    }
    let data = args.data.display();
    match made {
        true => output::line(&format!("created {data}: store, authority, profile")),
        false => output::line(&format!("reusing {data}, {} types deployed", node.summary().types)),
    }
    port.warn_if_changed(node);
    if args.data != Path::new(".ostraca") {
        let path = std::path::absolute(profile).unwrap_or_else(|_| profile.to_owned());
        let quoted = quote::shell_quote(&path.display().to_string());
        output::line(&format!("in other terminals, run: export OSTRACA_PROFILE={quoted}"));
    }
    dev_http::greet(&args.data, node, token);
    if args.dir.is_none() {
        output::line("next, in another terminal in this directory:");
        output::line("  ostraca new hello");
        output::line("  ostraca deploy --build hello");
    }
}

enum Never {}

/// Builds and deploys now and on every save of a source file. A failed build or deploy is shown; the previous
/// deployment keeps serving.
async fn follow(dir: Option<&Path>, mut project: Option<Project>, client: &Client) -> Never {
    let Some(dir) = dir else { return std::future::pending().await };
    loop {
        let sources = project.as_ref().map_or(dir, |it| &it.dir).to_owned();
        let sources = if sources == Path::new("") { PathBuf::from(".") } else { sources };
        let before = fingerprint(&sources).await;
        let read = match project.take() {
            Some(project) => Ok(project),
            None => Project::load(dir),
        };
        match attempt(client, read).await {
            Ok(text) => output::line(&text),
            Err(failure) => {
                eprint!("{}", failure.render(OutputFormat::Table, output::colour()));
                output::line(
                    "not deployed; the previous deployment keeps serving. Waiting for a change …",
                );
            }
        }
        let mut seen = before;
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let now = fingerprint(&sources).await;
            // An editor may save in several steps: build only when nothing changes any more.
            if now != before && now == seen {
                break;
            }
            seen = now;
        }
    }
}

async fn attempt(client: &Client, project: Result<Project, Failure>) -> Result<String, Failure> {
    let project = project?;
    if compile::can_build(&project) {
        compile::build(&project).await?;
    }
    let (deployed, methods) = deploy::deploy_project(client, &project).await?;
    Ok(format!("{}\n{}", deploy::summary(&deployed), deploy::hint(&methods)))
}

async fn fingerprint(dir: &Path) -> u64 {
    let dir = dir.to_owned();
    tokio::task::spawn_blocking(move || watch::fingerprint(&dir)).await.unwrap_or_default()
}
