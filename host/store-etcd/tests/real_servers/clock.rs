//! etcd with wrong clocks, which must decide nothing (R8).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use ostraca_store::{ClusterStore, RowEvent};
use ostraca_store_etcd::{EtcdStore, Options};
use ostraca_test_servers::etcd::Cluster;
use tokio::time::timeout;

use super::conformance;
use super::faults::increment;
use super::refusals::{Files, add_users};
use super::{TIMEOUT, create, next};

/// In seconds.
const YEAR: i64 = 31_557_600;

/// Lets the members' clocks jump: they are ahead by this many years from now on.
fn jump(etcd: &mut Cluster, years: [i64; 3]) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let this_year = 1970 + now.cast_signed() / YEAR;
    for (member, years) in years.into_iter().enumerate() {
        etcd.set_clock(member, years * YEAR);
        let found = etcd.year(member);
        assert!((found - this_year - years).abs() <= 1, "member {member} is in the year {found}");
    }
}

#[test]
fn r8_the_contract_holds_while_members_clocks_are_years_apart() {
    let mut etcd = Cluster::start(3);
    jump(&mut etcd, [10, -10, 30]);
    conformance::check(etcd);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r8_jumps_of_members_clocks_lose_no_change_and_no_login() {
    // By these tokens' own times, all logins end when the clocks jump ahead.
    let tokens = "jwt,priv-key={dir}/key,pub-key={dir}/key,sign-method=HS256,ttl=5m";
    let mut etcd = Cluster::start_with(3, &["--auth-token", tokens], &[("key", "secret")]);
    drop(create(&etcd).await);
    add_users(&etcd);
    let files = Files::new();
    let options = Options {
        user: Some("o".into()),
        password_file: files.file("secret"),
        ..Options::new(etcd.endpoints())
    };
    let store = Arc::new(EtcdStore::open(options).await.expect("opened"));
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("row", from);
    let end: Arc<AtomicBool> = Arc::default();
    let rows: Vec<_> = (0..4).map(|at| (format!("row{at}"), Arc::<AtomicU64>::default())).collect();
    let tasks: Vec<_> = rows
        .iter()
        .map(|(row, last)| increment(store.clone(), row.clone(), end.clone(), last.clone()))
        .map(tokio::spawn)
        .collect();
    for years in [[10, 10, 10], [-20, -20, -20], [1, -1, 0], [0, 0, 0]] {
        jump(&mut etcd, years);
        let before: Vec<_> = rows.iter().map(|(_, last)| last.load(Ordering::SeqCst)).collect();
        let changed = || rows.iter().map(|(_, last)| last.load(Ordering::SeqCst));
        let all_changed = async {
            while !changed().zip(&before).all(|(now, before)| now > *before) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(TIMEOUT, all_changed).await.expect("each row is changed after the jump");
    }
    end.store(true, Ordering::SeqCst);
    let counts = join_all(tasks).await;
    let (listed, _) = store.list("row").await.expect("rows");
    for (row, counted) in listed.iter().zip(counts) {
        let (acknowledged, in_doubt) = counted.expect("no panic");
        let number: u64 = std::str::from_utf8(&row.value).expect("text").parse().expect("a number");
        assert!((acknowledged..=acknowledged + in_doubt).contains(&number), "{}", row.key);
    }
    // The watch is the same one all the time, and saw the last change of each row.
    let (mut seen, mut left) = (0, listed.len());
    while left > 0 {
        let event = next(&mut watch).await;
        let RowEvent::Set(row) = event else { panic!("{event:?} after revision {seen}") };
        assert!(row.revision >= seen, "a change came late or twice");
        seen = row.revision;
        left -= usize::from(listed.contains(&row));
    }
}
