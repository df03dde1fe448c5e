//! Shows and changes which credentials are revoked, by compare-and-set on their row.

use ostraca_catalog as catalog;
use ostraca_catalog::rows::{self, RevocationsRow};
use ostraca_codes::codes;
use ostraca_config::policy::is_name;
use ostraca_core::extensions::Extensions;
use ostraca_core::ids::ClusterId;
use ostraca_store::StoredRow;
use ostraca_store::cluster::MAX_ROW_VALUE_BYTES;
use ostraca_token::{is_subject, is_token_id};
use ostraca_wire::identity::{Principal, PrincipalKind};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{Problem, Revocation, RevocationsRequest};
use ostraca_wire::server::AdminOutput;

use super::AdminService;
use super::catalog_problem::to_problem;
use super::standing::Caller;

/// How often a change is tried again if another node changes the row at the same time.
const ATTEMPTS: u32 = 10;

impl AdminService {
    pub(super) async fn revocations(
        &self,
        caller: Caller<'_>,
        request: RevocationsRequest,
    ) -> Result<AdminOutput, Problem> {
        let principal = caller.principal;
        for subject in &request.revoke {
            check_subject(subject)?;
        }
        let store = &*self.deployer.cluster_store;
        let mut attempt = 1;
        loop {
            let before = rows::read::<RevocationsRow>(store, rows::REVOCATIONS).await;
            let (mut row, at) = match before.map_err(to_problem)? {
                Some((row, at)) => (row, Some(at)),
                None => (RevocationsRow::default(), None),
            };
            if !self.change(principal, &request, &mut row)? {
                return Ok(AdminOutput::Revocations(listed(row)));
            }
            self.check_administrator(caller).await?;
            match rows::write(store, rows::REVOCATIONS, at, &row).await {
                Ok(at) => {
                    let value = rows::encode_value(&row).map_err(to_problem)?;
                    let key = rows::REVOCATIONS.into();
                    // This node must not admit what it has just revoked until its watch reports the new row.
                    self.access.on_row_changed(&StoredRow { key, revision: at, value });
                    let (revoked, restored) = (&request.revoke, &request.restore);
                    tracing::info!(principal, ?revoked, ?restored, "the revocations were changed");
                    return Ok(AdminOutput::Revocations(listed(row)));
                }
                Err(catalog::Error::RowConflict(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(to_problem(error)),
            }
        }
    }

    /// Changes the row; returns whether anything is different.
    fn change(
        &self,
        principal: &str,
        request: &RevocationsRequest,
        row: &mut RevocationsRow,
    ) -> Result<bool, Problem> {
        let now = self.gateway.clock.utc_ms();
        let before = row.entries.len();
        row.entries.retain(|entry| !request.restore.contains(&entry.subject));
        let mut changed = row.entries.len() < before;
        for subject in &request.revoke {
            if row.entries.iter().any(|entry| entry.subject == *subject) {
                continue;
            }
            row.entries.push(rows::Revocation {
                subject: subject.clone(),
                at_ms: now,
                by: principal.into(),
                reason: request.reason.clone(),
                extensions: Extensions::default(),
            });
            changed = true;
        }
        if !changed {
            return Ok(false);
        }
        row.revision += 1;
        let bytes = rows::encode_value(row).map_err(to_problem)?.len();
        if bytes > MAX_ROW_VALUE_BYTES {
            let text = format!(
                "{} revocations take {bytes} bytes, limit is {MAX_ROW_VALUE_BYTES}",
                row.entries.len()
            );
            let help = "restore credentials that have expired; revoke a principal instead of its certificates";
            return Err(problem(codes::TOO_MANY_REVOCATIONS, text, help));
        }
        Ok(true)
    }
}

fn listed(row: RevocationsRow) -> Vec<Revocation> {
    let entries = row.entries.into_iter().map(|entry| Revocation {
        subject: entry.subject,
        unix_ms: entry.at_ms,
        by: entry.by,
        reason: entry.reason,
    });
    entries.collect()
}

/// Refuses what no credential could be, since a mistyped revocation revokes nothing.
fn check_subject(subject: &str) -> Result<(), Problem> {
    let good = match subject.split_once('/') {
        Some(("client", name)) => Principal::new(ClusterId(0), PrincipalKind::Client, name).is_ok(),
        Some(("token", rest)) => rest
            .split_once('/')
            .is_some_and(|(issuer, subject)| is_name(issuer) && is_subject(subject)),
        Some(("token-id", rest)) => {
            rest.split_once('/').is_some_and(|(issuer, id)| is_name(issuer) && is_token_id(id))
        }
        Some(("certificate", digits)) => {
            digits.len() == 64
                && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        }
        _ => false,
    };
    if good {
        return Ok(());
    }
    let text = format!("{subject:?} is not a credential");
    let help = match subject.split_once('/') {
        Some(("node", _)) => {
            "a node cannot be revoked: whoever has its key can read and write the cluster's state; rotate the authority instead"
        }
        _ => {
            "write client/NAME, token/ISSUER/SUBJECT or token-id/ISSUER/ID, each in full, or use `ostraca revoke --certificate FILE`"
        }
    };
    Err(problem(codes::INVALID_CREDENTIAL, text, help))
}
