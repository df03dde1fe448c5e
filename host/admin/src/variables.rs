//! Shows and changes the secrets and settings of a type, by compare-and-set on their row.

use ostraca_catalog as catalog;
use ostraca_catalog::VariablesReader;
use ostraca_catalog::rows::{self, VariableEntry, VariablesRow};
use ostraca_codes::codes;
use ostraca_config::manifest::is_variable_name;
use ostraca_config::policy::Permission;
use ostraca_core::extensions::Extensions;
use ostraca_core::names;
use ostraca_store::cluster::MAX_ROW_VALUE_BYTES;
use ostraca_store::{CompareAndSet, CompareAndSetError, StoredRow};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{Problem, Variable, VariableKind, Variables, VariablesRequest};
use ostraca_wire::server::AdminOutput;

use super::AdminService;
use super::authorize::Needed;
use super::catalog_problem::to_problem;
use super::standing::Caller;

/// How often a change is tried again if somebody else changes the row at the same time.
const ATTEMPTS: u32 = 10;
/// Maximum number of types with values that are not deployed.
const UNDEPLOYED: usize = 100;

impl AdminService {
    pub(super) async fn variables(
        &self,
        caller: Caller<'_>,
        request: VariablesRequest,
    ) -> Result<AdminOutput, Problem> {
        let (store, name) = (&*self.deployer.cluster_store, &request.r#type);
        if name.is_empty() && request.set.is_none() && request.remove.is_none() {
            return self.all_variables().await;
        }
        self.check_type_name(name).await?;
        let key = rows::variables_key(name);
        let mut attempt = 1;
        loop {
            let before = rows::read::<VariablesRow>(store, &key).await.map_err(to_problem)?;
            let (mut row, at) = match before {
                Some((row, at)) => (row, Some(at)),
                None => (VariablesRow::default(), None),
            };
            if !self.change_variables(caller.principal, &request, &mut row)? {
                return Ok(AdminOutput::Variables(self.listed(name, &row)));
            }
            if at.is_none() && self.gateway.types.get(name).is_none() {
                self.check_undeployed(name).await?;
            }
            let is_empty = row.secrets.is_empty() && row.settings.is_empty();
            let value = rows::encode_value(&row).map_err(to_problem)?;
            if value.len() > MAX_ROW_VALUE_BYTES {
                let text = format!(
                    "the secrets and settings of `{name}` would take {} bytes, limit is {MAX_ROW_VALUE_BYTES}",
                    value.len()
                );
                let help = "remove some, or keep large values elsewhere and only their keys here";
                return Err(problem(codes::VARIABLES_TOO_LARGE, text, help));
            }
            let needed = Needed::OnType(Permission::Deploy, name.clone());
            self.check_again(caller, &[needed]).await?;
            let kept = (!is_empty).then(|| value.clone());
            let change = CompareAndSet { key: key.clone(), expected: at, value: kept };
            match store.compare_and_set(change).await {
                Ok(revision) => {
                    // Messages that this client sends through this node from now on read it.
                    match is_empty {
                        true => self.variables.on_row_deleted(&key, revision),
                        false => self.variables.on_row_changed(&StoredRow { key, revision, value }),
                    }
                    tracing::info!(r#type = name, by = caller.principal, "variables were changed");
                    return Ok(AdminOutput::Variables(self.listed(name, &row)));
                }
                Err(CompareAndSetError::RevisionMismatch(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(CompareAndSetError::RevisionMismatch(_)) => {
                    return Err(to_problem(catalog::Error::RowConflict(key)));
                }
                Err(CompareAndSetError::Store(error)) => return Err(to_problem(error.into())),
            }
        }
    }

    /// Checks the name of a type that need not be deployed, and that its namespace exists.
    async fn check_type_name(&self, name: &str) -> Result<(), Problem> {
        let (namespace, local) = names::split(name);
        check_name("a type", local)?;
        self.check_namespace(namespace).await
    }

    /// The secrets and settings of all types, deployed or not.
    async fn all_variables(&self) -> Result<AdminOutput, Problem> {
        let store = &*self.deployer.cluster_store;
        let (all, _) =
            store.list(rows::VARIABLES).await.map_err(|error| to_problem(error.into()))?;
        let mut variables = Vec::new();
        for row in &all {
            let Some(name) = rows::variables_type(&row.key) else { continue };
            let decoded = rows::decode::<VariablesRow>(row).map_err(to_problem)?;
            variables.extend(self.listed(&name, &decoded).variables);
        }
        Ok(AdminOutput::Variables(Variables { variables, deployed: true }))
    }

    /// Removes all secrets and settings of a type; returns whether there were any.
    pub(super) async fn remove_variables(&self, name: &str) -> Result<bool, Problem> {
        let (store, key) = (&*self.deployer.cluster_store, rows::variables_key(name));
        let mut any = false;
        for _ in 0..ATTEMPTS {
            let found = store.get(&key).await.map_err(|error| to_problem(error.into()))?;
            let Some(row) = found else { return Ok(any) };
            let expected = Some(row.revision);
            let removal = CompareAndSet { key: key.clone(), expected, value: None };
            match store.compare_and_set(removal).await {
                Ok(revision) => {
                    self.variables.on_row_deleted(&key, revision);
                    any = true;
                }
                Err(CompareAndSetError::RevisionMismatch(_)) => {}
                Err(CompareAndSetError::Store(error)) => return Err(to_problem(error.into())),
            }
        }
        Err(to_problem(catalog::Error::RowConflict(key)))
    }

    /// Refuses values of one more type that is not deployed, if many such types of its namespace have some: nobody sees
    /// them.
    async fn check_undeployed(&self, name: &str) -> Result<(), Problem> {
        let namespace = names::namespace(name);
        let store = &*self.deployer.cluster_store;
        let (all, _) =
            store.list(rows::VARIABLES).await.map_err(|error| to_problem(error.into()))?;
        let types = self.gateway.types.snapshot();
        let names = all.iter().filter_map(|row| rows::variables_type(&row.key));
        let names = names.filter(|name| names::namespace(name) == namespace);
        let count = names.filter(|name| !types.contains_key(&**name)).count();
        if count < UNDEPLOYED {
            return Ok(());
        }
        let text = format!(
            "{count} types that are not deployed have secrets or settings, limit is {UNDEPLOYED}"
        );
        let help = "deploy these types, or remove their values: `ostraca undeploy TYPE` removes all of a type";
        Err(problem(codes::VARIABLES_TOO_LARGE, text, help))
    }

    /// Changes the row; returns whether anything is different.
    fn change_variables(
        &self,
        principal: &str,
        request: &VariablesRequest,
        row: &mut VariablesRow,
    ) -> Result<bool, Problem> {
        if let Some(removed) = &request.remove {
            let entries = of_kind(row, removed.kind());
            let before = entries.len();
            entries.retain(|entry| entry.name != removed.name);
            return Ok(entries.len() < before);
        }
        let Some(set) = &request.set else { return Ok(false) };
        let value = match set.kind() {
            VariableKind::Secret => self.sealed(&request.r#type, set)?,
            _ => {
                check_name("a setting", &set.name)?;
                set.value.clone().into_bytes()
            }
        };
        let entry = VariableEntry {
            name: set.name.clone(),
            value,
            at_ms: self.gateway.clock.utc_ms(),
            by: principal.into(),
            extensions: Extensions::default(),
        };
        let entries = of_kind(row, set.kind());
        match entries.binary_search_by(|it| it.name.cmp(&entry.name)) {
            Ok(at) => entries[at] = entry,
            Err(at) => entries.insert(at, entry),
        }
        Ok(true)
    }

    fn sealed(&self, entity_type: &str, set: &Variable) -> Result<Vec<u8>, Problem> {
        check_name("a secret", &set.name)?;
        if set.value.is_empty() {
            let text = "the secret is empty".to_owned();
            return Err(problem(codes::INVALID_VARIABLE, text, "use `ostraca secret remove`"));
        }
        let Some(sealed) = self.variables.seal(entity_type, &set.name, &set.value) else {
            let text = "this node has no key for secrets (`identity.secret-keys`)".to_owned();
            let help = "copy `ca/secret.key` from another node to this one, and restart this one; if no node has the file, create it with `ostraca secret key` and copy it to all nodes";
            return Err(problem(codes::NO_SECRET_KEY, text, help));
        };
        sealed.map_err(|error| {
            let text = format!("cannot seal the secret: {error}");
            problem(codes::INVALID_VARIABLE, text, "check its length, or use another node")
        })
    }

    fn listed(&self, name: &str, row: &VariablesRow) -> Variables {
        let deployed = self.gateway.types.get(name);
        let grants = deployed.as_ref().map(|it| &it.manifest.grants);
        let listed = |kind: VariableKind, entry: &VariableEntry| {
            let (value, key, granted) = match kind {
                VariableKind::Secret => {
                    let key = VariablesReader::key_of(&entry.value).unwrap_or_default();
                    (String::new(), key, grants.map(|it| &it.secrets))
                }
                _ => {
                    let text = String::from_utf8_lossy(&entry.value).into_owned();
                    (text, String::new(), grants.map(|it| &it.settings))
                }
            };
            Variable {
                kind: kind.into(),
                name: entry.name.clone(),
                value,
                unix_ms: entry.at_ms,
                by: entry.by.clone(),
                granted: granted.is_some_and(|names| names.contains(&entry.name)),
                r#type: name.into(),
                key,
            }
        };
        let secrets = row.secrets.iter().map(|entry| listed(VariableKind::Secret, entry));
        let settings = row.settings.iter().map(|entry| listed(VariableKind::Setting, entry));
        Variables { variables: secrets.chain(settings).collect(), deployed: deployed.is_some() }
    }
}

fn of_kind(row: &mut VariablesRow, kind: VariableKind) -> &mut Vec<VariableEntry> {
    match kind {
        VariableKind::Secret => &mut row.secrets,
        _ => &mut row.settings,
    }
}

fn check_name(what: &str, name: &str) -> Result<(), Problem> {
    if is_variable_name(name) {
        return Ok(());
    }
    let text = format!("{name:?} is not the name of {what}");
    let help = "write 1 to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit";
    Err(problem(codes::INVALID_VARIABLE, text, help))
}
