//! Blobs in transfer, fragment by fragment: an incoming blob is stored when it is complete, an outgoing blob is kept
//! between its fragments, so that it is normally read from the store only once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use ostraca_store::{EntityStore, StoreError};

use crate::options::ServerOptions;

pub(super) struct Blobs {
    transfers: Mutex<Transfers>,
    max_blob: usize,
    max_blobs: usize,
}

#[derive(Default)]
struct Transfers {
    incoming: VecDeque<Upload>,
    outgoing: VecDeque<([u8; 32], Bytes)>,
}

struct Upload {
    number: u64,
    total: u64,
    bytes: BytesMut,
}

impl Blobs {
    pub(super) fn new(options: &ServerOptions) -> Self {
        let ServerOptions { max_blob_bytes: max_blob, max_blob_transfers: blobs, .. } = *options;
        Self { transfers: Mutex::default(), max_blob, max_blobs: blobs.max(1) }
    }

    /// Receives a fragment; returns the whole blob after the last one.
    pub(super) fn receive_fragment(
        &self,
        number: u64,
        total: u64,
        offset: u64,
        fragment: &[u8],
    ) -> Result<Option<Bytes>, StoreError> {
        if total > self.max_blob as u64 {
            let limit = self.max_blob;
            let why = format!("blob of {total} bytes exceeds the limit of {limit}");
            return Err(StoreError::LimitExceeded(why));
        }
        let mut transfers = self.lock();
        let begun = transfers.incoming.iter().position(|upload| upload.number == number);
        let known = begun.and_then(|at| transfers.incoming.remove(at));
        let mut upload = match known {
            Some(upload) => upload,
            None if offset == 0 => Upload { number, total, bytes: BytesMut::new() },
            None => {
                let why = "blob transfer dropped: too many concurrent transfers";
                return Err(StoreError::Unavailable(why.into()));
            }
        };
        let has = upload.bytes.len() as u64;
        if has != offset || upload.total != total || fragment.len() as u64 > total - has {
            return Err(StoreError::LimitExceeded("unexpected blob fragment".into()));
        }
        upload.bytes.extend_from_slice(fragment);
        if upload.bytes.len() as u64 == total {
            return Ok(Some(upload.bytes.freeze()));
        }
        while transfers.incoming.len() >= self.max_blobs {
            transfers.incoming.pop_front();
        }
        transfers.incoming.push_back(upload);
        Ok(None)
    }

    /// Returns a fragment of a blob, and the blob's size.
    pub(super) fn read_fragment(
        self: Arc<Self>,
        store: &Arc<dyn EntityStore>,
        digest: [u8; 32],
        offset: u64,
        limit: u64,
    ) -> BoxFuture<'static, Result<Option<(Bytes, u64)>, StoreError>> {
        let kept = {
            let transfers = self.lock();
            transfers.outgoing.iter().find(|(of, _)| *of == digest).map(|(_, bytes)| bytes.clone())
        };
        let store = store.clone();
        Box::pin(async move {
            let whole = match kept {
                Some(whole) => whole,
                None => match store.get_blob(digest).await? {
                    Some(whole) => whole,
                    None => return Ok(None),
                },
            };
            let total = whole.len();
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(total);
            let to = usize::try_from(limit).unwrap_or(usize::MAX).saturating_add(from).min(total);
            let mut transfers = self.lock();
            transfers.outgoing.retain(|(of, _)| *of != digest);
            if to < total {
                while transfers.outgoing.len() >= self.max_blobs {
                    transfers.outgoing.pop_front();
                }
                transfers.outgoing.push_back((digest, whole.clone()));
            }
            drop(transfers);
            Ok(Some((whole.slice(from..to), total as u64)))
        })
    }

    fn lock(&self) -> MutexGuard<'_, Transfers> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_that_do_not_belong_are_refused() {
        let blobs = Blobs::new(&ServerOptions {
            max_blob_bytes: 10,
            max_blob_transfers: 1,
            ..Default::default()
        });
        assert!(matches!(
            blobs.receive_fragment(1, 11, 0, b"a"),
            Err(StoreError::LimitExceeded(_))
        ));
        assert_eq!(blobs.receive_fragment(1, 4, 0, b"ab"), Ok(None));
        for (total, offset, fragment) in [(4, 1, &b"c"[..]), (5, 2, b"c"), (4, 2, b"cde")] {
            assert_eq!(blobs.receive_fragment(2, 4, 0, b"ab"), Ok(None));
            assert!(matches!(
                blobs.receive_fragment(2, total, offset, fragment),
                Err(StoreError::LimitExceeded(_))
            ));
        }
        assert_eq!(blobs.receive_fragment(3, 4, 0, b"ab"), Ok(None));
        assert_eq!(blobs.receive_fragment(4, 4, 0, b"ef"), Ok(None));
        assert!(matches!(blobs.receive_fragment(3, 4, 2, b"cd"), Err(StoreError::Unavailable(_))));
        assert_eq!(blobs.receive_fragment(4, 4, 2, b"gh"), Ok(Some(Bytes::from_static(b"efgh"))));
        assert_eq!(blobs.receive_fragment(5, 0, 0, b""), Ok(Some(Bytes::new())));
    }
}
