//! A profile: the cluster, its addresses, and the client's identity. `ostraca dev` and `ostraca ca issue` write
//! profiles.

use std::fs;
use std::path::{Path, PathBuf};

use ostraca_core::ids::ClusterId;
use ostraca_wire::identity::{Identity, IdentityError, TrustRoot};
use ostraca_wire::private_file;
use serde::{Deserialize, Serialize};

/// The environment variable that holds the path of a profile.
const VARIABLE: &str = "OSTRACA_PROFILE";
/// The path at which a profile is looked for, in the current directory and its parents.
const PLACE: &str = ".ostraca/profile.toml";

/// The cluster, its addresses, and the client's identity. The file holds the certificates and the key in PEM, or their
/// paths relative to the profile's directory.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The cluster's id, 32 hexadecimal digits.
    pub cluster_id: String,
    /// Addresses of nodes, as `host:port`; the first one that responds is used.
    pub addresses: Vec<String>,
    /// The namespace of the entities. Default `default`.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// The certificate of the cluster's authority.
    pub ca: String,
    /// The client's certificate; empty if it shows a token.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// The client's key: a secret; empty if it shows a token.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The file with the client's token, instead of certificate and key; relative to the profile's directory. It is read
    /// for each connection, so that it may be replaced before the token expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never print the key.
        f.debug_struct("Profile")
            .field("cluster_id", &self.cluster_id)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

fn default_namespace() -> String {
    "default".into()
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No profile was found.
    #[error(
        "no profile found: {VARIABLE} is not set, and no {PLACE} in {start} or above it: run `ostraca dev` there, or name a profile"
    )]
    NotFound {
        /// Where the search began.
        start: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {path}{from}: {source}")]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// Path of the file.
        path: String,
        /// What named the file, as part of the message; may be empty.
        from: &'static str,
        /// The underlying I/O error.
        source: std::io::Error,
    },
    /// The file is not a valid profile.
    #[error("invalid profile {path}: {text}")]
    Invalid {
        /// Path of the file.
        path: String,
        /// What is wrong, and in which line.
        text: String,
    },
    /// The profile's certificates or key are invalid.
    #[error("invalid credentials in the profile: {0}")]
    Identity(#[from] IdentityError),
    /// The profile's parts belong to different clusters.
    #[error(
        "the profile names cluster {expected}, but its {part} belongs to cluster {actual}: get a new profile from the cluster"
    )]
    ClusterMismatch {
        /// The cluster that the profile names.
        expected: String,
        /// The part that differs.
        part: &'static str,
        /// The cluster of that part.
        actual: ClusterId,
    },
}

/// A profile, and the file that it was read from.
#[derive(Clone, Debug)]
pub struct LocatedProfile {
    /// The profile.
    pub profile: Profile,
    /// The profile's file.
    pub path: PathBuf,
    /// The `.ostraca/profile.toml` in this directory or a parent, if `OSTRACA_PROFILE` took precedence over it and the
    /// two differ in cluster, addresses, namespace or certificate.
    pub shadowed: Option<PathBuf>,
}

impl LocatedProfile {
    fn differs(&self, other: &Path) -> bool {
        let what = |it: &Profile| {
            (
                it.cluster_id.clone(),
                it.addresses.clone(),
                it.namespace.clone(),
                it.certificate.clone(),
                it.token_file.clone(),
            )
        };
        // An unreadable profile counts as different.
        Profile::load(other).map_or(true, |other| what(&other) != what(&self.profile))
    }
}

impl Profile {
    /// The profile of `client` for nodes that listen on `addresses`, with all certificates inline.
    #[must_use]
    pub fn new(addresses: Vec<String>, ca_pem: &str, client: &Identity) -> Self {
        Self {
            cluster_id: client.principal().cluster.to_string(),
            addresses,
            namespace: default_namespace(),
            ca: ca_pem.into(),
            certificate: client.certificate_pem().into(),
            key: client.key_pem().into(),
            token_file: None,
        }
    }

    /// The profile of whoever holds the token in a file, for nodes that listen on `addresses`.
    #[must_use]
    pub fn with_token(
        addresses: Vec<String>,
        cluster: ClusterId,
        ca_pem: &str,
        token_file: PathBuf,
    ) -> Self {
        Self {
            cluster_id: cluster.to_string(),
            addresses,
            namespace: default_namespace(),
            ca: ca_pem.into(),
            certificate: String::new(),
            key: String::new(),
            token_file: Some(token_file),
        }
    }

    /// Finds the profile: `path` if given, else the file that `OSTRACA_PROFILE` names, else the nearest
    /// `.ostraca/profile.toml` from the current directory upwards.
    ///
    /// # Errors
    ///
    /// [`ProfileError`], which says where the profile was looked for.
    pub fn find(path: Option<&Path>) -> Result<Self, ProfileError> {
        Self::locate(path).map(|found| found.profile)
    }

    /// Like [`Profile::find`], but also returns the path of the file.
    ///
    /// # Errors
    ///
    /// As [`Profile::find`].
    pub fn locate(path: Option<&Path>) -> Result<LocatedProfile, ProfileError> {
        let found = |path: &Path, from: &'static str| {
            let profile = Self::read(path, from)?;
            Ok(LocatedProfile { profile, path: path.to_owned(), shadowed: None })
        };
        if let Some(path) = path {
            return found(path, "");
        }
        let start = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        let above = start.ancestors().map(|above| above.join(PLACE)).find(|path| path.is_file());
        if let Some(path) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
            let mut found = found(Path::new(&path), " (named by OSTRACA_PROFILE)")?;
            found.shadowed = above.filter(|above| found.differs(above));
            return Ok(found);
        }
        match above {
            Some(path) => found(&path, ""),
            None => Err(ProfileError::NotFound { start: start.display().to_string() }),
        }
    }

    /// The nearest `.ostraca/profile.toml` from `start` upwards.
    ///
    /// # Errors
    ///
    /// As [`Profile::find`].
    pub fn find_above(start: &Path) -> Result<Self, ProfileError> {
        match start.ancestors().map(|above| above.join(PLACE)).find(|path| path.is_file()) {
            Some(path) => Self::read(&path, ""),
            None => Err(ProfileError::NotFound { start: start.display().to_string() }),
        }
    }

    /// Reads a profile.
    ///
    /// # Errors
    ///
    /// [`ProfileError::File`], [`ProfileError::Invalid`].
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        Self::read(path, "")
    }

    fn read(path: &Path, from: &'static str) -> Result<Self, ProfileError> {
        let file = |action, path: &Path, source| ProfileError::File {
            action,
            path: path.display().to_string(),
            from,
            source,
        };
        let text = fs::read_to_string(path).map_err(|e| file("read", path, e))?;
        let mut profile: Self = toml::from_str(&text).map_err(|error| ProfileError::Invalid {
            path: path.display().to_string(),
            text: error.to_string().trim_end().to_owned(),
        })?;
        let directory = path.parent().unwrap_or(Path::new("."));
        if let Some(token_file) = &mut profile.token_file {
            *token_file = directory.join(&*token_file);
        }
        let with_token = profile.token_file.is_some();
        if with_token != profile.certificate.is_empty() || with_token != profile.key.is_empty() {
            return Err(ProfileError::Invalid {
                path: path.display().to_string(),
                text: "it needs either `certificate` and `key`, or `token_file`".into(),
            });
        }
        for part in [&mut profile.ca, &mut profile.certificate, &mut profile.key] {
            if !part.is_empty() && !part.contains("-----BEGIN") {
                let named = directory.join(part.as_str());
                *part = fs::read_to_string(&named).map_err(|e| file("read", &named, e))?;
            }
        }
        Ok(profile)
    }

    /// Writes the profile, readable by its owner only, and creates its directory if needed.
    ///
    /// # Errors
    ///
    /// [`ProfileError::File`].
    pub fn save(&self, path: &Path) -> Result<(), ProfileError> {
        let failed = |source| ProfileError::File {
            action: "write",
            path: path.display().to_string(),
            from: "",
            source,
        };
        let text = toml::to_string(self).map_err(|e| failed(std::io::Error::other(e)))?;
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        private_file::write(path, &text).map_err(failed)
    }

    /// The certificates and key in the profile, checked to belong to one cluster.
    pub(crate) fn credentials(&self) -> Result<(Credential, TrustRoot), ProfileError> {
        let trust = TrustRoot::from_pem(&self.ca)?;
        let mut parts = vec![("ca", trust.cluster)];
        let credential = match &self.token_file {
            Some(file) => Credential::Token(file.clone()),
            None => {
                let identity = Identity::from_pem(&self.certificate, &self.key)?;
                parts.push(("certificate", identity.principal().cluster));
                Credential::Certificate(Box::new(identity))
            }
        };
        for (what, found) in parts {
            if found.to_string() != self.cluster_id {
                return Err(ProfileError::ClusterMismatch {
                    expected: self.cluster_id.clone(),
                    part: what,
                    actual: found,
                });
            }
        }
        Ok((credential, trust))
    }
}

/// What a client shows to prove who it is.
#[derive(Clone)]
pub(crate) enum Credential {
    Certificate(Box<Identity>),
    /// The file with its token.
    Token(PathBuf),
}

impl Credential {
    /// The certificate, if it is one.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        match self {
            Self::Certificate(identity) => Some(identity),
            Self::Token(_) => None,
        }
    }

    /// The token, read anew; empty for a certificate.
    pub(crate) fn token(&self) -> Result<String, ProfileError> {
        let Self::Token(file) = self else { return Ok(String::new()) };
        let text = fs::read_to_string(file).map_err(|source| ProfileError::File {
            action: "read",
            path: file.display().to_string(),
            from: " (named by `token_file` in the profile)",
            source,
        })?;
        match text.trim() {
            "" => Err(ProfileError::Invalid {
                path: file.display().to_string(),
                text: "the file with the token is empty".into(),
            }),
            token => Ok(token.to_owned()),
        }
    }
}
