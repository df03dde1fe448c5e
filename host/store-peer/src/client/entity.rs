//! The `EntityStore` over a reconnecting link.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use futures::future::{BoxFuture, join_all, ready};
use futures::{FutureExt, TryFutureExt};
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, LoadedEntity,
};
use ostraca_store::entity::check_commit;
use ostraca_store::{EntityStore, Page, Scan, StoreError, StoreFuture, StoreIdentity};
use tokio::sync::Semaphore;

use super::reconnecting_link::{Driver, ReconnectingLink};
use super::verifier::StoreVerifier;
use crate::channel::Connect;
use crate::error::{ConnectError, RequestError};
use crate::options::ClientOptions;
use crate::protocol::{self, MAX_LOADS, Request, ResponseBody};

/// Client of the cluster's `EntityStore`, which another node runs. Its futures work with any executor.
pub struct PeerEntityStore {
    link: Arc<ReconnectingLink>,
    identity: StoreIdentity,
    blobs: Arc<Semaphore>,
    uploads: AtomicU64,
}

impl std::fmt::Debug for PeerEntityStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerEntityStore").field("store", &self.identity).finish_non_exhaustive()
    }
}

impl PeerEntityStore {
    /// Creates the first link. The driver maintains the link from then on; the caller must run it.
    ///
    /// # Errors
    /// [`ConnectError`]; if it is retryable, a retry may succeed later.
    pub async fn connect(
        connect: impl Connect,
        known: Arc<StoreVerifier>,
        options: ClientOptions,
    ) -> Result<(Self, Driver), ConnectError> {
        let blobs = Arc::new(Semaphore::new(options.max_concurrent_blobs.max(1)));
        let (line, driver) = ReconnectingLink::connect(connect, known, options).await?;
        let identity = line.identity()?;
        Ok((Self { link: Arc::new(line), identity, blobs, uploads: AtomicU64::new(0) }, driver))
    }

    /// Sends turns, in as many calls as their size requires.
    fn send(&self, turns: Vec<Commit>) -> Vec<BoxFuture<'static, Vec<CommitOutcome>>> {
        let count = turns.len();
        let request = Request::Commit(turns);
        let (Some(most), Ok(body)) = (self.link.max_call(), protocol::encode(&request)) else {
            // Without a link the call fails, whatever the request contains.
            return vec![self.committed(count, self.link.call(&request))];
        };
        let bytes = body.len();
        if bytes <= most {
            return vec![self.committed(count, self.link.send(body))];
        }
        drop(body);
        let Request::Commit(mut turns) = request else { return Vec::new() };
        if count <= 1 {
            // A frame can hold any turn that a store accepts, so the store would refuse this turn too.
            let limit = turns.first().map_or(Ok(()), check_commit);
            let why = limit.err().unwrap_or_else(|| {
                format!("turn of {bytes} bytes exceeds the limit of {most} (`peers.max-frame`)")
            });
            let never = CommitOutcome::Refused(CommitRefusal::TooLarge(why));
            return vec![ready(vec![never; count]).boxed()];
        }
        let rest = turns.split_off(count / 2);
        let mut calls = self.send(turns);
        calls.extend(self.send(rest));
        calls
    }

    /// Loads entities, in one call if their records fit into its response.
    fn load_some(
        &self,
        entities: &[(ShardPath, Entity)],
    ) -> impl Future<Output = Vec<Result<LoadedEntity, StoreError>>> + Send + 'static + use<> {
        let first = self.link.call(&Request::Load(entities.to_vec()));
        load_all(self.link.clone(), entities.to_vec(), first)
    }

    fn committed(
        &self,
        count: usize,
        answer: BoxFuture<'static, Result<ResponseBody, RequestError>>,
    ) -> BoxFuture<'static, Vec<CommitOutcome>> {
        let outcome = move |outcome: CommitOutcome| vec![outcome; count];
        let answer = answer.map(move |answer| match answer {
            Ok(ResponseBody::Commit(outcomes)) if outcomes.len() == count => outcomes,
            Ok(other) => {
                outcome(CommitOutcome::Unknown(ReconnectingLink::unexpected_response(&other)))
            }
            Err(RequestError::NotExecuted(error)) => {
                outcome(CommitOutcome::Refused(CommitRefusal::LimitReached(error.to_string())))
            }
            Err(RequestError::OutcomeUnknown(why) | RequestError::ResponseTooLarge(why)) => {
                outcome(CommitOutcome::Unknown(why))
            }
        });
        answer.boxed()
    }
}

async fn load_all(
    line: Arc<ReconnectingLink>,
    entities: Vec<(ShardPath, Entity)>,
    first: BoxFuture<'static, Result<ResponseBody, RequestError>>,
) -> Vec<Result<LoadedEntity, StoreError>> {
    let count = entities.len();
    match first.await {
        Ok(ResponseBody::Load(loaded)) if loaded.len() == count => loaded,
        // Together, the entities exceed one frame: load them one by one.
        Err(RequestError::ResponseTooLarge(_)) if count > 1 => {
            let mut all = Vec::with_capacity(count);
            for entity in entities {
                all.push(match line.call(&Request::Load(vec![entity])).await {
                    Ok(ResponseBody::Load(mut loaded)) if loaded.len() == 1 => loaded.remove(0),
                    other => Err(no(other)),
                });
            }
            all
        }
        other => vec![Err(no(other)); count],
    }
}

async fn scan_page(
    line: Arc<ReconnectingLink>,
    mut scan: Scan,
    first: BoxFuture<'static, Result<ResponseBody, RequestError>>,
) -> Result<Page, StoreError> {
    let mut answer = first.await;
    loop {
        match answer {
            Ok(ResponseBody::Scan(page)) => return page,
            // Shrink the page until it fits into a frame.
            Err(RequestError::ResponseTooLarge(_)) if scan.max_records > 1 => {
                scan.max_records = (scan.max_records / 8).clamp(1, 512);
                answer = line.call(&Request::Scan(scan.clone())).await;
            }
            other => return Err(no(other)),
        }
    }
}

/// Why there is no response of the expected kind.
fn no(answer: Result<ResponseBody, RequestError>) -> StoreError {
    match answer {
        Ok(other) => StoreError::Unavailable(ReconnectingLink::unexpected_response(&other)),
        Err(failed) => failed.into(),
    }
}

impl EntityStore for PeerEntityStore {
    fn identity(&self) -> StoreIdentity {
        self.link.identity().unwrap_or_else(|_| self.identity.clone())
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        let count = claims.len();
        let answer = self.link.call(&Request::Claim(claims));
        let answer = answer.map(move |answer| match answer {
            Ok(ResponseBody::Claim(outcomes)) if outcomes.len() == count => outcomes,
            other => vec![ClaimOutcome::Failed(no(other).to_string()); count],
        });
        answer.boxed()
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        let count = shards.len();
        let answer = self.link.call(&Request::CurrentClaims(shards));
        let answer = answer.map(move |answer| match answer {
            Ok(ResponseBody::CurrentClaims(Ok(claims))) if claims.len() == count => Ok(claims),
            Ok(ResponseBody::CurrentClaims(Err(error))) => Err(error),
            other => Err(no(other)),
        });
        answer.boxed()
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        let mut calls = self.send(turns);
        match calls.pop() {
            Some(only) if calls.is_empty() => only,
            last => join_all(calls.into_iter().chain(last)).map(|all| all.concat()).boxed(),
        }
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        let calls: Vec<_> = entities.chunks(MAX_LOADS).map(|some| self.load_some(some)).collect();
        join_all(calls).map(|all| all.concat()).boxed()
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        let first = self.link.call(&Request::Scan(scan.clone()));
        scan_page(self.link.clone(), scan, first).boxed()
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        let (line, blobs) = (self.link.clone(), self.blobs.clone());
        let upload = self.uploads.fetch_add(1, Ordering::Relaxed);
        let put = async move {
            let _turn = blobs.acquire_owned().map_err(closed).await?;
            let total = bytes.len() as u64;
            let fragment = line.shared.options.blob_fragment_bytes.max(1);
            let mut rest = bytes.clone();
            loop {
                let offset = total - rest.len() as u64;
                let bytes_now = rest.split_to(fragment.min(rest.len()));
                let request = Request::PutBlob { upload, total, offset, bytes: bytes_now };
                match line.call(&request).await {
                    Ok(ResponseBody::PutBlob(Ok(None))) if !rest.is_empty() => {}
                    Ok(ResponseBody::PutBlob(Ok(Some(digest)))) if rest.is_empty() => {
                        return if digest == *blake3::hash(&bytes).as_bytes() {
                            Ok(digest)
                        } else {
                            Err(StoreError::Corrupt("blob stored under the wrong digest".into()))
                        };
                    }
                    Ok(ResponseBody::PutBlob(Err(error))) => return Err(error),
                    other => return Err(no(other)),
                }
            }
        };
        put.boxed()
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        let (line, blobs) = (self.link.clone(), self.blobs.clone());
        let get = async move {
            let _turn = blobs.acquire_owned().map_err(closed).await?;
            let limit = line.shared.options.blob_fragment_bytes.max(1) as u64;
            let mut whole = BytesMut::new();
            loop {
                let offset = whole.len() as u64;
                match line.call(&Request::GetBlob { digest, offset, max_bytes: limit }).await {
                    Ok(ResponseBody::GetBlob(Ok(Some((fragment, total))))) => {
                        whole.extend_from_slice(&fragment);
                        if whole.len() as u64 >= total {
                            break;
                        }
                        if fragment.is_empty() {
                            let why = "blob truncated in transfer";
                            return Err(StoreError::Unavailable(why.into()));
                        }
                    }
                    Ok(ResponseBody::GetBlob(Ok(None))) if whole.is_empty() => return Ok(None),
                    Ok(ResponseBody::GetBlob(Err(error))) => return Err(error),
                    other => return Err(no(other)),
                }
            }
            if digest == *blake3::hash(&whole).as_bytes() {
                Ok(Some(whole.freeze()))
            } else {
                Err(StoreError::Corrupt("blob does not match its digest".into()))
            }
        };
        get.boxed()
    }
}

fn closed<E>(_: E) -> StoreError {
    StoreError::Unavailable("store client dropped".into())
}
