//! The section `health-check`: how nodes find out that the process of a silent node has ended (S7).

use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_health::{CommandSettings, HttpCheckSettings};
use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::kubernetes::PodHealthSettings;
use crate::user_file::{SourceText, units};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct HealthCheckSection {
    pub(super) kind: HealthCheckKind,
    #[serde(with = "units::duration")]
    pub(super) interval: Duration,
    #[serde(with = "units::duration")]
    pub(super) timeout: Duration,
    pub(super) command: Vec<String>,
    pub(super) url: String,
    pub(super) token_file: Option<PathBuf>,
    pub(super) ca_file: Option<PathBuf>,
    /// Whether the program that embeds the node has a check of its own.
    #[serde(skip)]
    pub(super) is_supplied: bool,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum HealthCheckKind {
    #[default]
    None,
    Kubernetes,
    Command,
    Http,
}

/// How nodes find out that a process has ended (S7).
#[derive(Clone, Debug)]
pub enum HealthCheckSettings {
    /// The API server of Kubernetes is asked about the node's pod.
    Kubernetes(Box<PodHealthSettings>),
    /// A program is asked.
    Command(CommandSettings),
    /// A server is asked.
    Http(HttpCheckSettings),
}

impl Default for HealthCheckSection {
    fn default() -> Self {
        Self {
            kind: HealthCheckKind::None,
            interval: Duration::from_millis(500),
            timeout: Duration::from_secs(2),
            command: Vec::new(),
            url: String::new(),
            token_file: None,
            ca_file: None,
            is_supplied: false,
        }
    }
}

impl HealthCheckSection {
    /// Whether there is a health check.
    pub(super) fn is_enabled(&self) -> bool {
        self.is_supplied || self.kind != HealthCheckKind::None
    }

    /// The settings of the health check; `None` if there is none, or if the program has its own. `pods` returns those
    /// of the check in Kubernetes.
    pub(super) fn settings(
        &self,
        data: &Path,
        pods: impl FnOnce() -> Option<PodHealthSettings>,
    ) -> Option<HealthCheckSettings> {
        if self.is_supplied {
            return None;
        }
        let file = |path: &Option<PathBuf>| path.as_ref().map(|it| data.join(it));
        match self.kind {
            HealthCheckKind::None => None,
            HealthCheckKind::Kubernetes => {
                pods().map(|it| HealthCheckSettings::Kubernetes(Box::new(it)))
            }
            HealthCheckKind::Command => {
                let (program, arguments) = self.command.split_first()?;
                Some(HealthCheckSettings::Command(CommandSettings {
                    program: program.into(),
                    arguments: arguments.to_vec(),
                    timeout: self.timeout,
                }))
            }
            HealthCheckKind::Http => Some(HealthCheckSettings::Http(HttpCheckSettings {
                url: self.url.clone(),
                token_file: file(&self.token_file),
                ca_file: file(&self.ca_file),
                timeout: self.timeout,
            })),
        }
    }

    /// Checks that `kind` has what it needs, and that nothing else is set. `has_pods` says whether the cluster's rows
    /// are in Kubernetes.
    pub(super) fn check(&self, input: &SourceText<'_>, has_pods: bool) -> Result<(), ConfigError> {
        let error = |key: &str, why: String, help: &str| {
            Err(input.at(&["health-check", key], why, Some(help.into())))
        };
        let of_kinds = [
            ("command", HealthCheckKind::Command, "command", !self.command.is_empty()),
            ("url", HealthCheckKind::Http, "http", !self.url.is_empty()),
            ("token-file", HealthCheckKind::Http, "http", self.token_file.is_some()),
            ("ca-file", HealthCheckKind::Http, "http", self.ca_file.is_some()),
        ];
        for (key, kind, name, is_set) in of_kinds {
            if is_set && self.kind != kind {
                let help = format!("add `kind = \"{name}\"`, or leave `{key}` out");
                return error(key, format!("`{key}` is used only with `kind = \"{name}\"`"), &help);
            }
        }
        match self.kind {
            HealthCheckKind::None => Ok(()),
            HealthCheckKind::Kubernetes if has_pods => Ok(()),
            HealthCheckKind::Kubernetes => {
                let why = "`kind = \"kubernetes\"` asks the API server that has the cluster's rows, and they are elsewhere";
                error("kind", why.into(), "add `kubernetes.url`, or write \"command\" or \"http\"")
            }
            HealthCheckKind::Command => match self.command.first() {
                None => {
                    let why = "`kind = \"command\"` needs the program to run";
                    error("kind", why.into(), "add `command = [\"/path/to/program\"]`")
                }
                Some(program) if !Path::new(program).is_absolute() => {
                    let why = format!(
                        "`command` must name its program by an absolute path, and {program:?} is none"
                    );
                    let help = "it is started without a shell, such as [\"/usr/local/bin/has-ended\", \"--region\", \"a\"]";
                    error("command", why, help)
                }
                Some(_) => match self.command.iter().find(|it| it.contains('\0')) {
                    Some(_) => error("command", "`command` contains a NUL".into(), "leave it out"),
                    None => Ok(()),
                },
            },
            HealthCheckKind::Http if self.url.is_empty() => {
                let why = "`kind = \"http\"` needs the URL of a server";
                let help =
                    "add `url = \"https://HOST/PATH?node={node}&incarnation={incarnation}\"`";
                error("kind", why.into(), help)
            }
            HealthCheckKind::Http => match HttpCheckSettings::check_url(&self.url) {
                Ok(()) => Ok(()),
                Err(why) => {
                    let help = "write \"https://HOST/PATH\", with fields such as {node} in its path or query; \"http://\" only for this machine";
                    error("url", format!("`url` cannot be used: {why}"), help)
                }
            },
        }
    }
}
