//! Permits for connections, streams and uploads, counted for the node and for each principal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::account::{Account, PrincipalUsage};
use super::principals::Budgets;
use super::send_window;

/// `reserved_connections` is at most `max_connections` divided by this.
const MOST_RESERVED: usize = 4;

/// The pause between two attempts to get a permit.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// No permit is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReached {
    /// The setting whose limit is reached.
    pub setting: &'static str,
    /// The limit.
    pub limit: usize,
}

/// One slot of a principal's limit, and of the node's if there is one, held until it is dropped.
#[derive(Debug)]
pub struct Permit {
    budgets: Arc<Budgets>,
    principal: Arc<PrincipalUsage>,
    of_node: Option<fn(&Budgets) -> &AtomicUsize>,
    of_principal: fn(&PrincipalUsage) -> &AtomicUsize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        (self.of_principal)(&self.principal).fetch_sub(1, Ordering::AcqRel);
        if let Some(of_node) = self.of_node {
            of_node(&self.budgets).fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Budgets {
    /// Admits one more connection of a principal, and returns its permit, its account and its send window. The last
    /// `reserved_connections` permits are for principals without a connection, so that an operator can connect whatever
    /// any one client does.
    ///
    /// # Errors
    ///
    /// The limit that is reached.
    pub fn admit_connection(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<(Permit, Arc<Account>, u64), LimitReached> {
        let limits = &self.limits;
        let principal = self.principal(name);
        let of_principal: fn(&PrincipalUsage) -> &AtomicUsize = |principal| &principal.connections;
        let of_node: fn(&Self) -> &AtomicUsize = |budgets| &budgets.connections;
        // Count first, so that two concurrent connections cannot both get the last permit.
        let mine = of_principal(&principal).fetch_add(1, Ordering::AcqRel);
        let all = of_node(self).fetch_add(1, Ordering::AcqRel);
        let (budgets, of_node) = (Arc::clone(self), Some(of_node));
        let place = Permit { budgets, principal: Arc::clone(&principal), of_node, of_principal };
        let most = limits.max_connections;
        let reserved = limits.reserved_connections.min(most / MOST_RESERVED);
        let refused = |setting, most| Err(LimitReached { setting, limit: most });
        if mine >= limits.principal_connections {
            return refused("network.principal-connections", limits.principal_connections);
        }
        if all >= most {
            return refused("network.max-connections", most);
        }
        if mine > 0 && all >= most - reserved {
            return refused("network.reserved-connections", reserved);
        }
        let window = send_window(limits, mine + 1, all + 1);
        Ok((place, self.connection(principal), window))
    }

    /// A permit for one more stream of a principal.
    pub(crate) fn admit_stream(
        self: &Arc<Self>,
        account: &Account,
    ) -> Result<Permit, LimitReached> {
        let most = self.limits.principal_streams;
        let of_principal: fn(&PrincipalUsage) -> &AtomicUsize = |principal| &principal.streams;
        let principal = Arc::clone(&account.principal);
        let open = of_principal(&principal).fetch_add(1, Ordering::AcqRel);
        let place = Permit { budgets: Arc::clone(self), principal, of_node: None, of_principal };
        match open < most {
            true => Ok(place),
            false => Err(LimitReached { setting: "network.principal-streams", limit: most }),
        }
    }

    /// Waits up to `upload_queue_timeout` for a permit for one more upload. So a client that deploys in a loop is
    /// slowed down instead of being refused once per round trip.
    pub(crate) async fn wait_for_upload_permit(
        self: &Arc<Self>,
        account: &Account,
    ) -> Result<Permit, LimitReached> {
        let end = Instant::now() + self.limits.upload_queue_timeout;
        loop {
            match self.admit_upload(account) {
                Err(_) if Instant::now() < end => tokio::time::sleep(RETRY_INTERVAL).await,
                place => return place,
            }
        }
    }

    /// A permit for one more upload.
    pub(crate) fn admit_upload(
        self: &Arc<Self>,
        account: &Account,
    ) -> Result<Permit, LimitReached> {
        let limits = &self.limits;
        let of_principal: fn(&PrincipalUsage) -> &AtomicUsize = |principal| &principal.uploads;
        let of_node: fn(&Self) -> &AtomicUsize = |budgets| &budgets.uploads;
        let principal = Arc::clone(&account.principal);
        let mine = of_principal(&principal).fetch_add(1, Ordering::AcqRel);
        let all = of_node(self).fetch_add(1, Ordering::AcqRel);
        let place =
            Permit { budgets: Arc::clone(self), principal, of_node: Some(of_node), of_principal };
        if mine >= limits.principal_uploads {
            return Err(LimitReached {
                setting: "network.principal-uploads",
                limit: limits.principal_uploads,
            });
        }
        if all >= limits.max_uploads {
            return Err(LimitReached { setting: "network.max-uploads", limit: limits.max_uploads });
        }
        Ok(place)
    }
}
