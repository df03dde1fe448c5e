//! The section `kubernetes`: the cluster's rows in a namespace of Kubernetes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_store_kubernetes::Options;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::numbers::saturating_u32;
use crate::user_file::{SourceText, units};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct KubernetesSection {
    pub(super) url: Option<String>,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) token_file: Option<PathBuf>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) certificate_file: Option<PathBuf>,
    pub(super) key_file: Option<PathBuf>,
    #[serde(with = "units::duration")]
    pub(super) connect_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) attempt_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) watch_timeout: Duration,
    pub(super) connections: u32,
    pub(super) page_rows: u32,
    pub(super) pod: Option<String>,
    pub(super) termination_log: PathBuf,
}

/// How the nodes of a cluster in Kubernetes find out that a process has ended (S7).
#[derive(Clone, Debug)]
pub struct PodHealthSettings {
    /// The API server, and the namespace of the pods.
    pub options: Options,
    /// The name of this process's pod.
    pub pod: String,
    /// The file from which the kubelet reads the termination message of this process's container.
    pub termination_log: PathBuf,
}

impl Default for KubernetesSection {
    fn default() -> Self {
        let options = Options::new("", "");
        Self {
            url: None,
            namespace: options.namespace,
            name: options.name,
            token_file: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            connect_timeout: options.connect_timeout,
            attempt_timeout: options.attempt_timeout,
            watch_timeout: options.watch_timeout,
            connections: saturating_u32(options.connections),
            page_rows: saturating_u32(options.page_rows),
            pod: None,
            termination_log: "/dev/termination-log".into(),
        }
    }
}

impl KubernetesSection {
    /// The settings of the connections; `None` if the cluster's rows are not in Kubernetes. `lease` bounds how long the
    /// API server may be silent: a renewal must be sent again in time (R8).
    pub(super) fn options(&self, data: &Path, lease: Duration) -> Option<Options> {
        let file = |path: &Option<PathBuf>| path.as_ref().map(|it| data.join(it));
        let longest = lease / 4;
        Some(Options {
            name: self.name.clone(),
            token_file: file(&self.token_file),
            ca_file: file(&self.ca_file),
            identity: file(&self.certificate_file).zip(file(&self.key_file)),
            connect_timeout: self.connect_timeout.min(longest),
            attempt_timeout: self.attempt_timeout.min(longest),
            watch_timeout: self.watch_timeout.min(longest),
            connections: self.connections as usize,
            page_rows: self.page_rows as usize,
            ..Options::new(self.url.as_ref()?, &self.namespace)
        })
    }

    /// The settings of the health check. `options` are those of the store.
    pub(super) fn health(&self, options: Options) -> PodHealthSettings {
        PodHealthSettings {
            pod: self.pod.clone().unwrap_or_else(|| options.holder.clone()),
            termination_log: self.termination_log.clone(),
            options,
        }
    }

    /// Checks the API server's address, and the names.
    pub(super) fn check(&self, input: &SourceText<'_>) -> Result<(), ConfigError> {
        let error = |key: &str, why: String, help: Option<&str>| {
            Err(input.at(&["kubernetes", key], why, help.map(Into::into)))
        };
        let Some(url) = &self.url else {
            let set = [
                ("token-file", self.token_file.is_some()),
                ("ca-file", self.ca_file.is_some()),
                ("certificate-file", self.certificate_file.is_some()),
                ("key-file", self.key_file.is_some()),
                ("namespace", !self.namespace.is_empty()),
                ("pod", self.pod.is_some()),
            ];
            return match set.into_iter().find(|(_, is_set)| *is_set) {
                None => Ok(()),
                Some((key, _)) => {
                    error(key, format!("`{key}` is used only with `url`"), Some("add `url`"))
                }
            };
        };
        if let Err(why) = Options::check_url(url) {
            let help = "write \"in-cluster\" in a pod, or \"https://HOST:PORT\"";
            return error("url", format!("{url:?} is not an API server: {why}"), Some(help));
        }
        if self.namespace.is_empty() && url != Options::IN_CLUSTER {
            let why =
                "`namespace` must be set, since the pod's own is used only with \"in-cluster\"";
            let help = "add `namespace` (`--kubernetes-namespace` of `ostraca init`)";
            return error("url", why.into(), Some(help));
        }
        let is_the_pods = self.namespace.is_empty();
        let namespace =
            if is_the_pods { Ok(()) } else { Options::check_namespace(&self.namespace) };
        for (key, name, checked) in [
            ("namespace", &self.namespace, namespace),
            ("name", &self.name, Options::check_name(&self.name)),
        ] {
            if let Err(why) = checked {
                return error(key, format!("`{key}` cannot be {name:?}: {why}"), None);
            }
        }
        if self.certificate_file.is_some() != self.key_file.is_some() {
            let key = if self.key_file.is_some() { "key-file" } else { "certificate-file" };
            let why = "`certificate-file` and `key-file` belong together".to_owned();
            return error(key, why, Some("set both, or neither"));
        }
        Ok(())
    }
}
