//! `ostraca complete -- WORD…`: what the completion scripts call for names that only the cluster knows.
//!
//! It prints candidates for the last word, one per line, and none if the word is not such a name or no node responds in
//! time: a person who presses the tab key wants no error.

use std::path::PathBuf;
use std::time::Duration;

use clap::CommandFactory;
use ostraca_client::{AdminError, Client, MessageKind, Profile};

use crate::args::{Args, Complete};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

/// The shell waits meanwhile.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Names that only the cluster knows.
#[derive(Debug, PartialEq, Eq)]
enum Names {
    /// Deployed types.
    Types,
    /// Deployed types, each with a `/` for the id that follows.
    TypesOfEntities,
    /// The methods of a type, perhaps only its commands.
    Methods { entity_type: String, only_commands: bool },
}

pub(crate) async fn run(args: &Complete) -> Result<Exit, Failure> {
    let Some((names, profile)) = wanted(&args.words) else { return Ok(Exit::Done) };
    if let Ok(Some(found)) = tokio::time::timeout(TIMEOUT, find(names, profile)).await {
        for name in found {
            output::line(&name);
        }
    }
    Ok(Exit::Done)
}

/// Decides which names fit in place of the last word, and which profile the words before it name.
fn wanted(words: &[String]) -> Option<(Names, Option<PathBuf>)> {
    let (last, before) = words.split_last()?;
    if last.starts_with('-') {
        return None;
    }
    let root = Args::command();
    let (mut command, mut name) = (&root, "");
    let (mut positions, mut profile) = (Vec::new(), None);
    let mut before = before.iter();
    while let Some(word) = before.next() {
        if let Some(option) = word.strip_prefix("--") {
            if let Some(path) = option.strip_prefix("profile=") {
                profile = Some(path.into());
            }
            if takes_next_word(&root, command, option) {
                // The value itself is being completed if it is the last word.
                let value = before.next()?;
                if option == "profile" {
                    profile = Some(value.into());
                }
            }
        } else if word.starts_with('-') {
            // No short option has a value.
        } else if name.is_empty() {
            command = root.find_subcommand(word)?;
            name = word;
        } else {
            positions.push(word.as_str());
        }
    }
    let names = match (name, &positions[..]) {
        ("methods" | "entities" | "activate" | "rollback" | "deployments", []) => Names::Types,
        (
            "send" | "tell" | "inspect" | "watch" | "delete" | "forget-entity" | "restart-entity",
            [],
        ) if !last.contains('/') => Names::TypesOfEntities,
        ("send" | "tell", [entity]) => {
            let entity_type = entity.split_once('/')?.0.to_owned();
            Names::Methods { entity_type, only_commands: name == "tell" }
        }
        _ => return None,
    };
    Some((names, profile))
}

/// Whether the value of a long option is the word that follows it.
fn takes_next_word(root: &clap::Command, command: &clap::Command, option: &str) -> bool {
    let mut known = root.get_arguments().chain(command.get_arguments());
    known.any(|known| known.get_long() == Some(option) && known.get_action().takes_values())
}

async fn find(names: Names, profile: Option<PathBuf>) -> Option<Vec<String>> {
    let profile = Profile::locate(profile.as_deref()).ok()?.profile;
    let client = Client::connect(profile).await.ok()?;
    let found = ask(&client, names).await;
    connection::disconnect(client).await;
    found.ok()
}

async fn ask(client: &Client, names: Names) -> Result<Vec<String>, AdminError> {
    Ok(match names {
        Names::Types => types(client).await?,
        Names::TypesOfEntities => types(client).await?.into_iter().map(|name| name + "/").collect(),
        Names::Methods { entity_type, only_commands } => {
            let methods = client.methods(&entity_type).await?.methods;
            let fits = |kind| !only_commands || kind == MessageKind::Command;
            methods.into_iter().filter(|it| fits(it.kind())).map(|it| it.name).collect()
        }
    })
}

async fn types(client: &Client) -> Result<Vec<String>, AdminError> {
    let deployed = client.deployments().await?;
    Ok(deployed.into_iter().map(|deployed| deployed.r#type).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Option<Names> {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        wanted(&words).map(|(names, _)| names)
    }

    fn methods(entity_type: &str, only_commands: bool) -> Option<Names> {
        Some(Names::Methods { entity_type: entity_type.into(), only_commands })
    }

    #[test]
    fn types_come_first_and_then_their_methods() {
        assert_eq!(names("send "), Some(Names::TypesOfEntities));
        assert_eq!(names("inspect co"), Some(Names::TypesOfEntities));
        assert_eq!(names("methods co"), Some(Names::Types));
        assert_eq!(names("send counter/a "), methods("counter", false));
        assert_eq!(names("tell counter/a ad"), methods("counter", true));
        for other in ["", "se", "send counter/", "send counter/a add ", "send counter ", "nodes "] {
            assert_eq!(names(other), None, "{other}");
        }
    }

    #[test]
    fn options_and_their_values_are_no_names() {
        assert_eq!(names("--output json -v send "), Some(Names::TypesOfEntities));
        assert_eq!(names("send --timeout 5s counter/a "), methods("counter", false));
        assert_eq!(names("send --timeout=5s counter/a "), methods("counter", false));
        assert_eq!(names("send counter/a --no-check "), methods("counter", false));
        assert_eq!(names("send --timeout "), None, "the value is being completed");
        assert_eq!(names("send --ti"), None);
        let words = ["--profile", "p.toml", "send", ""].map(str::to_owned);
        assert_eq!(wanted(&words), Some((Names::TypesOfEntities, Some("p.toml".into()))));
    }
}
