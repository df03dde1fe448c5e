//! `ostraca init`: a cluster's first node.

use ostraca_client::Profile;
use ostraca_node::{InitOptions, Initialised};
use serde_json::json;

use crate::args::{Format, Global, Init};
use crate::failure::{Exit, Failure};
use crate::{output, quote};

pub(crate) fn run(global: &Global, args: &Init) -> Result<Exit, Failure> {
    let options = InitOptions {
        cluster_name: args.cluster.clone(),
        node: args.node.clone(),
        listen: args.listen,
        shards: args.shards,
    };
    let Initialised { cluster, config, ca_pem, admin, .. } =
        ostraca_node::init(&args.dir, &options)?;
    let profile = args.dir.join("profile.toml");
    let mut reached = args.listen;
    if reached.ip().is_unspecified() {
        reached.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    Profile::new(vec![reached.to_string()], &ca_pem, &admin).save(&profile)?;
    if global.output == Format::Json {
        output::json(&json!({
            "cluster": cluster.to_string(), "cluster_name": args.cluster, "node": args.node,
            "config": config, "profile": profile, "shards": args.shards,
        }));
        return Ok(Exit::Done);
    }
    output::line(&format!(
        "made node {} of the new cluster {} ({cluster})",
        args.node, args.cluster
    ));
    output::pairs(&[
        ("configuration", config.display().to_string()),
        ("profile", format!("{}, for client/admin", profile.display())),
        ("authority", format!("{}: keep ca.key safe", args.dir.join("ca").display())),
    ]);
    output::line("next:");
    output::line(&format!("  ostraca run --config {}", quote::word(&config.display().to_string())));
    output::line(&format!(
        "  ostraca status --profile {}",
        quote::word(&profile.display().to_string())
    ));
    Ok(Exit::Done)
}
