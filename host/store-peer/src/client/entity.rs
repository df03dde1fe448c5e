//! The `EntityStore` over a line.

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

use super::known::Known;
use super::line::{Driver, Line};
use crate::channel::Connect;
use crate::error::{ConnectError, Failed};
use crate::options::Options;
use crate::protocol::{self, Answer, MAX_LOADS, Request};

/// The cluster's `EntityStore`, carried by another node. Its futures may be awaited under any executor.
pub struct PeerEntityStore {
    line: Arc<Line>,
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
    /// Makes the first link. The driver keeps it up from then on, and has to be run.
    ///
    /// # Errors
    /// [`ConnectError`]; if it is retryable, the same may succeed later.
    pub async fn connect(
        connect: impl Connect,
        known: Arc<Known>,
        options: Options,
    ) -> Result<(Self, Driver), ConnectError> {
        let blobs = Arc::new(Semaphore::new(options.blobs.max(1)));
        let (line, driver) = Line::connect(connect, known, options).await?;
        let identity = line.identity()?;
        Ok((Self { line: Arc::new(line), identity, blobs, uploads: AtomicU64::new(0) }, driver))
    }

    /// Sends turns, in as many calls as their bytes need.
    fn send(&self, turns: Vec<Commit>) -> Vec<BoxFuture<'static, Vec<CommitOutcome>>> {
        let count = turns.len();
        let request = Request::Commit(turns);
        let (Some(most), Ok(body)) = (self.line.max_call(), protocol::encode(&request)) else {
            // Without a link the answer is made without looking at the request.
            return vec![self.committed(count, self.line.ask(&request))];
        };
        let bytes = body.len();
        if bytes <= most {
            return vec![self.committed(count, self.line.send(body))];
        }
        drop(body);
        let Request::Commit(mut turns) = request else { return Vec::new() };
        if count <= 1 {
            // No frame is smaller than what a store takes, so this store would refuse it as well.
            let limit = turns.first().map_or(Ok(()), check_commit);
            let why = limit.err().unwrap_or_else(|| {
                format!("a turn of {bytes} bytes, where {most} are taken (`peer_max_frame`)")
            });
            let never = CommitOutcome::Refused(CommitRefusal::TooLarge(why));
            return vec![ready(vec![never; count]).boxed()];
        }
        let rest = turns.split_off(count / 2);
        let mut calls = self.send(turns);
        calls.extend(self.send(rest));
        calls
    }

    /// Asks for entities, in one call if their records fit into its answer.
    fn load_some(
        &self,
        entities: &[(ShardPath, Entity)],
    ) -> impl Future<Output = Vec<Result<LoadedEntity, StoreError>>> + Send + 'static + use<> {
        let first = self.line.ask(&Request::Load(entities.to_vec()));
        load_all(self.line.clone(), entities.to_vec(), first)
    }

    fn committed(
        &self,
        count: usize,
        answer: BoxFuture<'static, Result<Answer, Failed>>,
    ) -> BoxFuture<'static, Vec<CommitOutcome>> {
        let outcome = move |outcome: CommitOutcome| vec![outcome; count];
        let answer = answer.map(move |answer| match answer {
            Ok(Answer::Commit(outcomes)) if outcomes.len() == count => outcomes,
            Ok(other) => outcome(CommitOutcome::Unknown(Line::strange(&other))),
            Err(Failed::NotDone(error)) => {
                outcome(CommitOutcome::Refused(CommitRefusal::LimitReached(error.to_string())))
            }
            Err(Failed::Unknown(why) | Failed::TooLarge(why)) => {
                outcome(CommitOutcome::Unknown(why))
            }
        });
        answer.boxed()
    }
}

async fn load_all(
    line: Arc<Line>,
    entities: Vec<(ShardPath, Entity)>,
    first: BoxFuture<'static, Result<Answer, Failed>>,
) -> Vec<Result<LoadedEntity, StoreError>> {
    let count = entities.len();
    match first.await {
        Ok(Answer::Load(loaded)) if loaded.len() == count => loaded,
        // Together they are more than one frame: one by one.
        Err(Failed::TooLarge(_)) if count > 1 => {
            let mut all = Vec::with_capacity(count);
            for entity in entities {
                all.push(match line.ask(&Request::Load(vec![entity])).await {
                    Ok(Answer::Load(mut loaded)) if loaded.len() == 1 => loaded.remove(0),
                    other => Err(no(other)),
                });
            }
            all
        }
        other => vec![Err(no(other)); count],
    }
}

async fn scan_page(
    line: Arc<Line>,
    mut scan: Scan,
    first: BoxFuture<'static, Result<Answer, Failed>>,
) -> Result<Page, StoreError> {
    let mut answer = first.await;
    loop {
        match answer {
            Ok(Answer::Scan(page)) => return page,
            // A page has what fits into a frame.
            Err(Failed::TooLarge(_)) if scan.limit > 1 => {
                scan.limit = (scan.limit / 8).clamp(1, 512);
                answer = line.ask(&Request::Scan(scan.clone())).await;
            }
            other => return Err(no(other)),
        }
    }
}

/// Why there is no answer of the kind that was asked for.
fn no(answer: Result<Answer, Failed>) -> StoreError {
    match answer {
        Ok(other) => StoreError::Unavailable(Line::strange(&other)),
        Err(failed) => failed.into(),
    }
}

impl EntityStore for PeerEntityStore {
    fn identity(&self) -> StoreIdentity {
        self.line.identity().unwrap_or_else(|_| self.identity.clone())
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        let count = claims.len();
        let answer = self.line.ask(&Request::Claim(claims));
        let answer = answer.map(move |answer| match answer {
            Ok(Answer::Claim(outcomes)) if outcomes.len() == count => outcomes,
            other => vec![ClaimOutcome::Failed(no(other).to_string()); count],
        });
        answer.boxed()
    }

    fn claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        let count = shards.len();
        let answer = self.line.ask(&Request::Claims(shards));
        let answer = answer.map(move |answer| match answer {
            Ok(Answer::Claims(Ok(claims))) if claims.len() == count => Ok(claims),
            Ok(Answer::Claims(Err(error))) => Err(error),
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
        let first = self.line.ask(&Request::Scan(scan.clone()));
        scan_page(self.line.clone(), scan, first).boxed()
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        let (line, blobs) = (self.line.clone(), self.blobs.clone());
        let upload = self.uploads.fetch_add(1, Ordering::Relaxed);
        let put = async move {
            let _turn = blobs.acquire_owned().map_err(closed).await?;
            let total = bytes.len() as u64;
            let piece = line.shared.options.blob_piece.max(1);
            let mut rest = bytes.clone();
            loop {
                let offset = total - rest.len() as u64;
                let bytes_now = rest.split_to(piece.min(rest.len()));
                let request = Request::PutBlob { upload, total, offset, bytes: bytes_now };
                match line.ask(&request).await {
                    Ok(Answer::PutBlob(Ok(None))) if !rest.is_empty() => {}
                    Ok(Answer::PutBlob(Ok(Some(digest)))) if rest.is_empty() => {
                        return if digest == *blake3::hash(&bytes).as_bytes() {
                            Ok(digest)
                        } else {
                            Err(StoreError::Corrupt("a blob was kept under another digest".into()))
                        };
                    }
                    Ok(Answer::PutBlob(Err(error))) => return Err(error),
                    other => return Err(no(other)),
                }
            }
        };
        put.boxed()
    }

    fn blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        let (line, blobs) = (self.line.clone(), self.blobs.clone());
        let get = async move {
            let _turn = blobs.acquire_owned().map_err(closed).await?;
            let limit = line.shared.options.blob_piece.max(1) as u64;
            let mut whole = BytesMut::new();
            loop {
                let offset = whole.len() as u64;
                match line.ask(&Request::Blob { digest, offset, limit }).await {
                    Ok(Answer::Blob(Ok(Some((piece, total))))) => {
                        whole.extend_from_slice(&piece);
                        if whole.len() as u64 >= total {
                            break;
                        }
                        if piece.is_empty() {
                            let why = "a blob was cut short on its way";
                            return Err(StoreError::Unavailable(why.into()));
                        }
                    }
                    Ok(Answer::Blob(Ok(None))) if whole.is_empty() => return Ok(None),
                    Ok(Answer::Blob(Err(error))) => return Err(error),
                    other => return Err(no(other)),
                }
            }
            if digest == *blake3::hash(&whole).as_bytes() {
                Ok(Some(whole.freeze()))
            } else {
                Err(StoreError::Corrupt("a blob is not what its digest says".into()))
            }
        };
        get.boxed()
    }
}

fn closed<E>(_: E) -> StoreError {
    StoreError::Unavailable("the store was let go".into())
}
