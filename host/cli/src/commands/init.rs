//! `ostraca init`: initialises a cluster's first node, or one that joins.

use std::path::{Path, PathBuf};

use ostraca_client::Profile;
use ostraca_codes::codes;
use ostraca_node::config::{ClusterSettings, Role};
use ostraca_node::{
    EtcdSettings, InitOptions, InitializedCluster, JoinOptions, JoinedNode, KubernetesSettings,
    NodeError, PostgresSettings, RowsSettings,
};
use serde_json::json;

use crate::args::{Global, Init, OutputFormat, TlsMode};
use crate::failure::{Exit, Failure};
use crate::{output, quote};

pub(crate) fn run(global: &Global, args: &Init) -> Result<Exit, Failure> {
    match &args.ca {
        Some(ca) => join(global, args, ca),
        None => first(global, args),
    }
}

/// Initialises a node that joins.
fn join(global: &Global, args: &Init, ca: &Path) -> Result<Exit, Failure> {
    let named = || args.dir.file_name().map(|name| name.to_string_lossy().into_owned());
    let node = args.node.clone().or_else(named).unwrap_or_default();
    let options = JoinOptions {
        node: node.clone(),
        listen: args.listen,
        roles: args.roles.clone(),
        join: args.join.clone(),
        postgres: database(args)?,
        rows: rows(args)?,
        ca: ca.to_owned(),
    };
    let joining = ostraca_node::join(&args.dir, &options).map_err(|error| match error {
        NodeError::Settings(ostraca_node::config::Error::Identity(error)) => Failure::usage(codes::INVALID_IDENTITY, error.to_string())
            .help("--ca is the directory `ca` that the first node's `ostraca init` created, with ca.pem and ca.key"),
        error => error.into(),
    });
    let JoinedNode { cluster, config } = joining?;
    let roles: Vec<_> = options.roles.iter().map(Role::to_string).collect();
    if global.output == OutputFormat::Json {
        output::json(&json!({
            "cluster_id": cluster.to_string(), "node": node, "config": config,
            "roles": roles, "join": args.join,
        }));
        return Ok(Exit::Done);
    }
    output::line(&format!("created node {node}, which joins the cluster {cluster}"));
    let outside = args.join.is_empty();
    let joins = match &options.rows {
        _ if !outside => args.join.join(", "),
        Some(RowsSettings::Etcd(etcd)) => {
            format!("the nodes that it finds in etcd at {}", etcd.endpoints.join(", "))
        }
        Some(RowsSettings::Kubernetes(_)) => "the nodes that it finds in Kubernetes".into(),
        None => "the nodes that it finds in the database".into(),
    };
    output::pairs(&[
        ("configuration", config.display().to_string()),
        ("roles", roles.join(", ")),
        ("joins", joins),
    ]);
    output::line(match outside {
        true => "next:",
        false => "next, while one of those nodes is running:",
    });
    output::line(&format!(
        "  ostraca run --config {}",
        quote::shell_quote(&config.display().to_string())
    ));
    Ok(Exit::Done)
}

/// The database from the arguments.
fn database(args: &Init) -> Result<Option<PostgresSettings>, Failure> {
    let Some(url) = &args.postgres else { return Ok(None) };
    Ok(Some(PostgresSettings {
        url: url.clone(),
        password_file: absolute(args.postgres_password_file.as_deref())?,
        tls: args.postgres_tls.map(|mode| mode == TlsMode::Verify),
        ca_file: absolute(args.postgres_ca_file.as_deref())?,
    }))
}

/// The store for the cluster's rows from the arguments.
fn rows(args: &Init) -> Result<Option<RowsSettings>, Failure> {
    let kubernetes = &args.kubernetes;
    if let Some(url) = &kubernetes.url {
        let certificate = absolute(kubernetes.certificate_file.as_deref())?;
        return Ok(Some(RowsSettings::Kubernetes(KubernetesSettings {
            url: url.clone(),
            namespace: kubernetes.namespace.clone(),
            name: kubernetes.name.clone(),
            token_file: absolute(kubernetes.token_file.as_deref())?,
            ca_file: absolute(kubernetes.ca_file.as_deref())?,
            identity: certificate.zip(absolute(kubernetes.key_file.as_deref())?),
        })));
    }
    let etcd = &args.etcd;
    if etcd.endpoints.is_empty() {
        return Ok(None);
    }
    let certificate = absolute(etcd.certificate_file.as_deref())?;
    Ok(Some(RowsSettings::Etcd(EtcdSettings {
        endpoints: etcd.endpoints.clone(),
        prefix: etcd.prefix.clone(),
        user: etcd.user.clone(),
        password_file: absolute(etcd.password_file.as_deref())?,
        tls: etcd.tls.map(|mode| mode == TlsMode::Verify),
        ca_file: absolute(etcd.ca_file.as_deref())?,
        identity: certificate.zip(absolute(etcd.key_file.as_deref())?),
    })))
}

/// The absolute path of a file: those of a configuration are relative to the node's directory.
pub(super) fn absolute(path: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = path else { return Ok(None) };
    std::path::absolute(path)
        .map(Some)
        .map_err(|error| Failure::usage(codes::FILE_ERROR, format!("{}: {error}", path.display())))
}

/// The cluster-wide settings from the arguments.
fn settings(args: &Init) -> Result<ClusterSettings, Failure> {
    let mut settings = ClusterSettings::default();
    for (name, value) in &args.set {
        settings.set(name, value).map_err(|why| Failure::usage(codes::INVALID_VALUE, why))?;
    }
    Ok(settings)
}

/// Initialises a cluster's first node.
fn first(global: &Global, args: &Init) -> Result<Exit, Failure> {
    let node = args.node.as_deref().unwrap_or("node-1");
    let options = InitOptions {
        cluster_name: args.cluster.clone(),
        node: node.into(),
        listen: args.listen,
        shards: args.shards,
        settings: settings(args)?,
        postgres: database(args)?,
        rows: rows(args)?,
    };
    let InitializedCluster { cluster, config, ca_pem, admin, .. } =
        ostraca_node::init(&args.dir, &options)?;
    let profile = args.dir.join("profile.toml");
    let mut reached = args.listen;
    if reached.ip().is_unspecified() {
        reached.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    Profile::new(vec![reached.to_string()], &ca_pem, &admin).save(&profile)?;
    if global.output == OutputFormat::Json {
        output::json(&json!({
            "cluster_id": cluster.to_string(), "cluster_name": args.cluster, "node": node,
            "config": config, "profile": profile, "shards": args.shards,
        }));
        return Ok(Exit::Done);
    }
    output::line(&format!("created node {node} of the new cluster {} ({cluster})", args.cluster));
    output::pairs(&[
        ("configuration", config.display().to_string()),
        ("profile", format!("{}, for the principal client/admin", profile.display())),
        ("authority", format!("{}: keep ca.key safe", args.dir.join("ca").display())),
    ]);
    output::line("next:");
    output::line(&format!(
        "  ostraca run --config {}",
        quote::shell_quote(&config.display().to_string())
    ));
    output::line(&format!(
        "  ostraca status --profile {}",
        quote::shell_quote(&profile.display().to_string())
    ));
    Ok(Exit::Done)
}
