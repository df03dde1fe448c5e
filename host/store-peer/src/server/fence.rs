//! Tracks the newest link of each client, and refuses calls from older ones.
//!
//! A client that drops a link creates another one, and acts on what it knows about the calls on the old one. Calls
//! still in transit on the old link must not take effect after those of the new one: otherwise a row that has since
//! been created and deleted would be created again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ostraca_core::ids::NodeId;

use crate::protocol::Hello;

/// The newest links of all clients of a store.
#[derive(Debug, Default)]
pub(super) struct Fence {
    clients: Mutex<HashMap<(NodeId, u64), Weak<Newest>>>,
}

/// The newest link of one client.
type Newest = Mutex<u64>;

/// A link's permit to make calls.
#[derive(Debug)]
pub(super) struct LinkPermit {
    link: u64,
    newest: Arc<Newest>,
}

impl Fence {
    /// Admits a link, and fences off all older links of its client.
    ///
    /// # Errors
    /// If the link is not the newest one of its client.
    pub(super) fn enter(&self, node: &NodeId, hello: &Hello) -> Result<LinkPermit, String> {
        let mut clients = lock(&self.clients);
        clients.retain(|_, newest| newest.strong_count() > 0);
        let key = (node.clone(), hello.client);
        let known = clients.get(&key).and_then(Weak::upgrade);
        let newest = known.unwrap_or_else(|| {
            let newest = Arc::new(Newest::default());
            clients.insert(key, Arc::downgrade(&newest));
            newest
        });
        drop(clients);
        let mut now = lock(&newest);
        if hello.link <= *now {
            return Err(format!("link {} arrived after link {}", hello.link, *now));
        }
        *now = hello.link;
        drop(now);
        Ok(LinkPermit { link: hello.link, newest })
    }
}

impl LinkPermit {
    /// Makes a call while no newer link can be admitted.
    ///
    /// # Errors
    /// If a newer link has been admitted.
    pub(super) fn call<T>(&self, call: impl FnOnce() -> T) -> Result<T, &'static str> {
        let newest = lock(&self.newest);
        if *newest == self.link {
            Ok(call())
        } else {
            Err("link replaced by a newer one of its client")
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::ClusterId;

    use super::*;

    #[test]
    fn calls_from_older_links_of_a_client_are_refused() {
        let fence = Fence::default();
        let hello = |client, link| Hello { cluster: ClusterId(1), client, link };
        let (a, b) = (NodeId::from("a"), NodeId::from("b"));
        let first = fence.enter(&a, &hello(1, 1)).unwrap();
        let others = [(&a, 2), (&b, 1)].map(|(node, client)| fence.enter(node, &hello(client, 1)));
        assert!(first.call(|| ()).is_ok());
        let second = fence.enter(&a, &hello(1, 2)).unwrap();
        assert!(first.call(|| ()).is_err());
        assert!(fence.enter(&a, &hello(1, 2)).is_err());
        assert!(fence.enter(&a, &hello(1, 1)).is_err(), "a late hello changes nothing");
        assert!(second.call(|| ()).is_ok());
        assert!(others.iter().all(|pass| pass.as_ref().unwrap().call(|| ()).is_ok()));
        drop((first, second, others));
        fence.enter(&b, &hello(2, 1)).unwrap();
        assert_eq!(lock(&fence.clients).len(), 1, "clients without links are removed");
    }
}
