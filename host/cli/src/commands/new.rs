//! `ostraca new`: creates an entity project that can be built, deployed and called without further setup.

use std::fs;
use std::path::Path;

use ostraca_codes::codes;
use serde_json::json;

use crate::args::{Global, New, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::project::template;

pub(crate) fn run(global: &Global, args: &New) -> Result<Exit, Failure> {
    let name = &args.name;
    let good = (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !good || template::RESERVED.contains(&name.as_str()) {
        let text = format!("{name:?} is not a valid project name");
        let help = "use 1 to 64 lower-case letters, digits and dashes, starting with a letter; Rust keywords are not allowed";
        return Err(Failure::usage(codes::INVALID_NAME, text).help(help));
    }
    let dir = Path::new(name);
    if dir.exists() {
        let text = format!("{name} already exists");
        return Err(
            Failure::usage(codes::FILE_EXISTS, text).help("choose another name or directory")
        );
    }
    let files = template::files(name, args.language);
    for (path, text) in &files {
        let path = dir.join(path);
        let parent = path.parent().unwrap_or(dir);
        fs::create_dir_all(parent).map_err(|error| Failure::file("create", parent, &error))?;
        fs::write(&path, text).map_err(|error| Failure::file("write", &path, &error))?;
    }
    if global.output == OutputFormat::Json {
        output::json(&json!({ "name": name, "dir": dir, "files": files.len() }));
        return Ok(Exit::Done);
    }
    output::line(&format!(
        "created {name}: its entity is in {name}/{}",
        template::source(args.language)
    ));
    output::line("next, start a node that builds and deploys it now and on every save:");
    output::line(&format!("  ostraca dev {name}"));
    output::line("then, in another terminal in this directory:");
    output::line(&format!("  ostraca send {name}/alice greet '\"hello\"'"));
    Ok(Exit::Done)
}
