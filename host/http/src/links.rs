//! Links that log in to the console, once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a log-in link can be used.
const LINK: Duration = Duration::from_secs(3_600);
/// Maximum number of links that can be used; the oldest one gives way.
const LINKS: usize = 16;

/// Links with which a token's holder logs in without typing the token. Each can be used once.
#[derive(Debug, Default)]
pub struct LoginLinks(Mutex<HashMap<String, (String, Instant)>>);

impl LoginLinks {
    /// The secret of a new link for this token; the page that it leads to shows it once.
    #[must_use]
    pub fn add(&self, token: &str) -> String {
        let code = format!("{:032x}", rand::random::<u128>());
        let now = Instant::now();
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, (_, made)| now.duration_since(*made) < LINK);
        if links.len() >= LINKS
            && let Some(oldest) = links.iter().min_by_key(|(_, (_, made))| *made)
        {
            let oldest = oldest.0.clone();
            links.remove(&oldest);
        }
        links.insert(code.clone(), (token.to_owned(), now));
        code
    }

    pub(crate) fn take(&self, code: &str) -> Option<String> {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, made) = links.remove(code)?;
        (made.elapsed() < LINK).then_some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_can_be_used_once() {
        let links = LoginLinks::default();
        let code = links.add("token");
        assert_eq!(links.take("another"), None);
        assert_eq!(links.take(&code).as_deref(), Some("token"));
        assert_eq!(links.take(&code), None);
        let first = links.add("first");
        for _ in 0..LINKS {
            let _ = links.add("more");
        }
        assert_eq!(links.take(&first), None, "the oldest one gave way");
        assert_eq!(links.0.lock().expect("not poisoned").len(), LINKS);
    }
}
