//! What a session admits, and what a client knows about cluster time.

use std::time::Duration;

use ostraca_client::ledger::{CallAdmission, ClusterTime};
use ostraca_client::{MessageId, SessionId};
use ostraca_wire::proto::problem::Hint;
use ostraca_wire::proto::{Outcome, Problem, Reply};

const SESSION: SessionId = SessionId([1; 16]);
/// The limits on a session's messages and on their bytes.
const MESSAGES: usize = 65_536;
const BYTES: usize = 64 << 20;

fn code(admission: &mut CallAdmission, size: usize) -> Option<String> {
    admission.admit(None, 100, size).err().map(|refused| refused.problem.code)
}

#[test]
fn a_session_is_full_at_its_message_limit() {
    let mut admission = CallAdmission::new(SESSION, 1);
    for _ in 0..MESSAGES {
        assert_eq!(code(&mut admission, 0), None);
    }
    assert_eq!(code(&mut admission, 0).as_deref(), Some("session-full"));
    admission.release(1, 0);
    assert_eq!(code(&mut admission, 0), None);
    assert_eq!(code(&mut admission, 0).as_deref(), Some("session-full"));
}

#[test]
fn a_session_is_full_at_its_byte_limit() {
    let mut admission = CallAdmission::new(SESSION, 1);
    assert_eq!(code(&mut admission, BYTES + 1).as_deref(), Some("session-full"));
    assert_eq!(code(&mut admission, BYTES), None);
    for size in [1, 2] {
        assert_eq!(code(&mut admission, size).as_deref(), Some("session-full"));
    }
    admission.release(1, BYTES);
    assert_eq!(code(&mut admission, 2), None);
}

#[test]
fn an_id_has_a_sequence_and_a_creation_time() {
    let mut admission = CallAdmission::new(SESSION, 1);
    for (sequence, created) in [(0, 5), (5, 0), (0, 0)] {
        let id = MessageId { session: SESSION, sequence, created_ms: created, utc_ms: 0 };
        let refused = admission.admit(Some(id), 100, 0).expect_err("no such id");
        assert_eq!(refused.problem.code, "invalid-message");
    }
    let id = MessageId { session: SESSION, sequence: 5, created_ms: 5, utc_ms: 0 };
    assert_eq!(admission.admit(Some(id), 100, 0), Ok(id));
}

#[test]
fn r17_creation_times_never_decrease_within_a_session() {
    let mut admission = CallAdmission::new(SESSION, 1);
    let created =
        |admission: &mut CallAdmission, at| admission.admit(None, at, 0).map(|id| id.created_ms);
    assert_eq!(created(&mut admission, 100), Ok(100));
    admission.stamped(500);
    assert_eq!(created(&mut admission, 200), Ok(500));
    admission.stamped(300);
    assert_eq!(created(&mut admission, 501), Ok(501));
}

fn refused(code: &str, time: u64) -> Reply {
    let hint = Some(Hint::CreatedMs(time));
    let problem = Problem { code: code.into(), hint, ..Problem::default() };
    Reply { outcome: Outcome::NotRun.into(), problem: Some(problem), ..Reply::default() }
}

#[test]
fn cluster_time_follows_known_times_and_the_local_clock() {
    let mut time = ClusterTime::default();
    let local = Duration::from_micros;
    assert_eq!(time.at(local(0)), 1);
    time.advance_to(100, local(0));
    assert_eq!((time.at(local(0)), time.at(local(10_000))), (100, 110));
    time.advance_to(50, local(0));
    assert_eq!(time.at(local(0)), 100, "the reading is already later");
    // A time that is already known does not reset the reading: the half millisecond counts.
    time.advance_to(100, local(500));
    assert_eq!(time.at(local(1_000)), 101);
}

#[test]
fn r17_a_refused_creation_time_corrects_cluster_time() {
    let mut time = ClusterTime::default();
    let local = Duration::from_secs(1);
    time.observe_reply(&refused("too-old", 900), local);
    assert_eq!(time.at(local), 900);
    time.observe_reply(&refused("too-old", 800), local);
    assert_eq!(time.at(local), 900, "an earlier time changes nothing");
    time.observe_reply(&refused("created-in-future", 50), local);
    assert_eq!(time.at(local), 50, "this clock was ahead");
    time.observe_reply(&refused("overloaded", 5_000), local);
    assert_eq!(time.at(local), 50);
}
