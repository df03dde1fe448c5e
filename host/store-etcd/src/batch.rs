//! Calls as etcd's transactions: each compare-and-set is a transaction within that of its batch.
//!
//! etcd's quota counts only what a transaction itself writes, not what is nested in it: a batch would be accepted by an
//! etcd without room, until its disk is full. So a single change is sent as it is, and a batch also writes a key of its
//! own.

use bytes::Bytes;

use crate::error::CallError;
use crate::members::Member;
use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::request_op::Request;
use crate::proto::response_op::Response;
use crate::proto::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, ResponseOp,
    TxnRequest, TxnResponse,
};

/// A transaction that writes a key if it has this `mod_revision` (0: if it does not exist), and reads it otherwise.
pub(crate) fn put_if(key: Bytes, mod_revision: i64, value: Bytes) -> TxnRequest {
    change_if(key.clone(), mod_revision, Request::RequestPut(PutRequest { key, value }))
}

/// The same, but deletes the key.
pub(crate) fn delete_if(key: Bytes, mod_revision: i64) -> TxnRequest {
    let delete = DeleteRangeRequest { key: key.clone() };
    change_if(key, mod_revision, Request::RequestDeleteRange(delete))
}

fn change_if(key: Bytes, mod_revision: i64, change: Request) -> TxnRequest {
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::ModRevision(mod_revision)),
    };
    TxnRequest { compare: vec![compare], success: vec![op(change)], failure: vec![read(key)] }
}

/// Also writes this key if the transaction writes its own.
pub(crate) fn and_put(mut transaction: TxnRequest, key: Bytes, value: Bytes) -> TxnRequest {
    transaction.success.push(op(Request::RequestPut(PutRequest { key, value })));
    transaction
}

/// Also deletes this key, if it exists, if the transaction writes its own.
pub(crate) fn and_delete(mut transaction: TxnRequest, key: Bytes) -> TxnRequest {
    transaction.success.push(op(Request::RequestDeleteRange(DeleteRangeRequest { key })));
    transaction
}

/// Sends operations as one transaction. `marker` is the key that makes the quota count. The answers are in the order of
/// the operations.
pub(crate) async fn transact(
    member: &Member,
    mut requests: Vec<RequestOp>,
    marker: Bytes,
) -> Result<TxnResponse, CallError> {
    let writes = |op: &RequestOp| matches!(op.request, Some(Request::RequestTxn(_)));
    if let [RequestOp { request: Some(Request::RequestTxn(single)) }] = &mut requests[..] {
        let response = member.transact(std::mem::take(single)).await?;
        let header = response.header;
        let responses = vec![ResponseOp { response: Some(Response::ResponseTxn(response)) }];
        return Ok(TxnResponse { header, succeeded: true, responses });
    }
    if requests.iter().any(writes) {
        requests.push(op(Request::RequestPut(PutRequest { key: marker, value: Bytes::new() })));
    }
    member.transact(TxnRequest { success: requests, ..TxnRequest::default() }).await
}

/// Reads a key.
pub(crate) fn read(key: Bytes) -> RequestOp {
    op(Request::RequestRange(RangeRequest { key, ..RangeRequest::default() }))
}

/// A transaction as a part of another one.
pub(crate) fn nested(transaction: TxnRequest) -> RequestOp {
    op(Request::RequestTxn(transaction))
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// The answer to one of these operations.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The key was changed as wanted.
    Changed,
    /// It was read only, and is this.
    Found(Option<KeyValue>),
}

/// The answer to [`nested`] or [`read`]; `None` if it is neither.
pub(crate) fn answer(response: ResponseOp) -> Option<Answer> {
    match response.response? {
        Response::ResponseRange(read) => Some(Answer::Found(read.kvs.into_iter().next())),
        Response::ResponseTxn(TxnResponse { succeeded: true, .. }) => Some(Answer::Changed),
        Response::ResponseTxn(refused) => answer(refused.responses.into_iter().next()?),
        Response::ResponsePut(_) | Response::ResponseDeleteRange(_) => None,
    }
}

/// What a transaction of [`put_if`] found instead of what it expected.
pub(crate) fn found(response: TxnResponse) -> Option<KeyValue> {
    if response.succeeded {
        return None;
    }
    match answer(response.responses.into_iter().next()?) {
        Some(Answer::Found(found)) => found,
        _ => None,
    }
}
