//! `ostraca ca`: issues certificates with their keys, for clients and nodes, and replaces the authority.

use std::fs;
use std::path::Path;

use ostraca_ca::Ca;
use ostraca_client::Profile;
use ostraca_codes::codes;
use serde_json::json;

use super::authority::{invalid_identity, not_an_authority};
use super::ca_rotate;
use crate::args::{self, CaCommand, CertificateKind, Global, Issue, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::output;

pub(crate) async fn run(global: &Global, args: &args::Ca) -> Result<Exit, Failure> {
    match &args.what {
        CaCommand::Issue(args) => issue(global, args),
        CaCommand::Rotate(args) => ca_rotate::run(global, args).await,
    }
}

fn issue(global: &Global, args: &Issue) -> Result<Exit, Failure> {
    let ca = Ca::load(&args.ca).map_err(not_an_authority)?;
    let identity = match args.kind {
        CertificateKind::Client => ca.issue_client(&args.name),
        CertificateKind::Node => ca.issue_node(&args.name, &["localhost".into()]),
    }
    .map_err(invalid_identity)?;
    fs::create_dir_all(&args.out).map_err(|error| Failure::file("create", &args.out, &error))?;
    let mut files = vec![format!("{}.pem", args.name), format!("{}.key", args.name)];
    if args.kind == CertificateKind::Client {
        files.push(format!("{}.toml", args.name));
    }
    for file in &files {
        untaken(&args.out.join(file))?;
    }
    identity.save(&args.out, &args.name).map_err(invalid_identity)?;
    if args.kind == CertificateKind::Client {
        let profile = args.out.join(format!("{}.toml", args.name));
        Profile::new(args.address.clone(), ca.certificate_pem(), &identity).save(&profile)?;
    }
    let files: Vec<_> =
        files.iter().map(|file| args.out.join(file).display().to_string()).collect();
    match global.output {
        OutputFormat::Table => {
            output::line(&format!(
                "issued a certificate for {}: {}",
                identity.principal(),
                files.join(", ")
            ));
            if args.kind == CertificateKind::Node {
                let ca = args.ca.join("ca.pem");
                output::line(&format!("also copy {} to the node, but not its key", ca.display()));
            }
        }
        OutputFormat::Json => output::json(&json!({
            "principal": identity.principal().to_string(),
            "cluster": ca.cluster().to_string(), "files": files,
        })),
    }
    Ok(Exit::Done)
}

fn untaken(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        let text = format!("{} already exists", path.display());
        return Err(
            Failure::usage(codes::FILE_EXISTS, text).help("choose another directory or name")
        );
    }
    Ok(())
}
