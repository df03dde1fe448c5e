//! Reads the store's records page by page, across shards. Any node can read them.

use std::ops::RangeInclusive;

use bytes::{BufMut, Bytes, BytesMut};
use ostraca_codes::codes;
use ostraca_core::ids::ShardId;
use ostraca_core::pools::Pool;
use ostraca_store::{Scan, ScanKind, ScannedRecord};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::Problem;

use super::{AdminService, store_failed};

/// Maximum number and total bytes of records per read from the store.
pub(super) const PAGE: (usize, usize) = (512, 1 << 20);

/// What was done with a record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The record belongs to the page.
    Added,
    /// The record does not belong to the page.
    Skipped,
    /// Neither the record nor any after it belongs to a page.
    Ended,
}

/// Length of the checksum at a cursor's end, which distinguishes a cursor from garbage.
const CHECK: usize = 8;

fn check_of(cursor: &[u8]) -> [u8; CHECK] {
    let hash = blake3::hash(cursor);
    let mut check = [0; CHECK];
    check.copy_from_slice(&hash.as_bytes()[..CHECK]);
    check
}

/// Splits a cursor into its shard and the store's cursor within that shard. `None` if the checksum does not
/// match: then no earlier page returned the cursor.
fn parse_cursor(given: &[u8]) -> Option<(u32, &[u8])> {
    let (payload, check) = given.split_last_chunk::<CHECK>()?;
    let (shard, rest) = payload.split_first_chunk::<4>()?;
    (*check == check_of(payload)).then(|| (u32::from_be_bytes(*shard), rest))
}

fn make_cursor(shard: u32, after: Option<&[u8]>) -> Bytes {
    let mut cursor = BytesMut::new();
    cursor.put_u32(shard);
    cursor.extend_from_slice(after.unwrap_or_default());
    let check = check_of(&cursor);
    cursor.extend_from_slice(&check);
    cursor.freeze()
}

impl AdminService {
    /// Reads the records of these shards in order, starting at the cursor, until `limit` of them have been added. Shards of
    /// pools that were copied are left out.
    /// Returns the cursor of the next page, which holds a shard and the store's cursor within it; empty if this is the
    /// last page.
    pub(super) async fn read_page(
        &self,
        shards: RangeInclusive<u32>,
        kind: ScanKind,
        given: &[u8],
        limit: usize,
        mut add: impl FnMut(u32, ScannedRecord) -> Taken,
    ) -> Result<Bytes, Problem> {
        let (mut shard, mut after) = (*shards.start(), None);
        if !given.is_empty() {
            let Some((at, rest)) = parse_cursor(given).filter(|(at, _)| shards.contains(at)) else {
                return Err(problem(
                    codes::INVALID_CURSOR,
                    "the cursor is not from an earlier page",
                    "pass the cursor of an earlier page, or leave it out",
                ));
            };
            shard = at;
            after = (!rest.is_empty()).then(|| Bytes::copy_from_slice(rest));
        }
        let pools = self.gateway.pools.get();
        let mut added = 0;
        while shards.contains(&shard) {
            // What may be left in a pool that was copied is in the other one too.
            if pools.of(ShardId(shard)).is_some_and(Pool::is_left) {
                (shard, after) = (shard + 1, None);
                continue;
            }
            loop {
                let scan = Scan {
                    shard: self.gateway.pools.path(ShardId(shard)),
                    kind: kind.clone(),
                    after: after.take(),
                    max_records: PAGE.0.min(limit - added),
                    max_bytes: PAGE.1,
                };
                let found =
                    self.entity_store.scan(scan).await.map_err(|error| store_failed(&error))?;
                for record in found.records {
                    match add(shard, record) {
                        Taken::Added => added += 1,
                        Taken::Skipped => {}
                        Taken::Ended => return Ok(Bytes::new()),
                    }
                }
                after = found.next_cursor;
                if after.is_none() || added >= limit {
                    break;
                }
            }
            if added >= limit {
                break;
            }
            shard += 1;
        }
        Ok(match after {
            Some(after) => make_cursor(shard, Some(&after)),
            None if added >= limit && shard < *shards.end() => make_cursor(shard + 1, None),
            None => Bytes::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_that_no_page_returned_is_refused() {
        let payload = [&7_u32.to_be_bytes()[..], b"key"].concat();
        let given = [payload.clone(), check_of(&payload).to_vec()].concat();
        assert_eq!(parse_cursor(&given), Some((7, &b"key"[..])));
        for garbage in [&b""[..], b"garbage", b"more garbage than that", &payload] {
            assert_eq!(parse_cursor(garbage), None, "{garbage:?}");
        }
        let changed = given.iter().enumerate().map(|(at, b)| if at == 5 { b ^ 1 } else { *b });
        assert_eq!(parse_cursor(&changed.collect::<Vec<u8>>()), None);
    }
}
