//! A process writes its cluster's format. A program of its own, since the format is kept for the whole process.

use ostraca_catalog::rows::{self, ClusterRow};
use ostraca_core::format;
use ostraca_store::StoredRow;
use ostraca_store::record::{Header, RecordKind};

/// The formats with which a row and a record are written now.
fn written() -> [u8; 2] {
    let row = rows::encode_value(&ClusterRow::new(1)).expect("encode");
    let header = Header { kind: RecordKind::Head, flags: 0, key_id: 0 }.to_bytes();
    [row[0], header[1]]
}

#[test]
fn a_process_writes_its_clusters_format() {
    let next = format::RELEASE + 1;
    format::know(next);
    assert_eq!(written(), [format::OLDEST; 2], "the cluster is unknown");
    let cluster = |format: u8| ClusterRow::new(format.into());
    cluster(format::RELEASE).adopt_format().expect("readable");
    assert_eq!(written(), [format::RELEASE; 2], "not the newest that it knows");

    let raising = ClusterRow { target_format: next.into(), ..cluster(format::RELEASE) };
    raising.adopt_format().expect("readable");
    assert_eq!(written(), [format::RELEASE; 2], "not every node may know it yet");

    let unknown = ClusterRow { target_format: u32::from(next) + 1, ..cluster(format::RELEASE) };
    unknown.adopt_format().expect("it is not written yet");
    unknown.readable().expect_err("whoever starts now would not be seen");
    cluster(next + 1).adopt_format().expect_err("an unknown format");
    assert_eq!(written(), [format::RELEASE; 2]);

    cluster(next).adopt_format().expect("readable");
    assert_eq!(written(), [next; 2]);
    cluster(format::RELEASE).adopt_format().expect("readable");
    assert_eq!(written(), [next; 2], "a format never goes back");

    let value = rows::encode_value(&cluster(next)).expect("encode");
    let stored = StoredRow { key: "cluster".into(), revision: 1, value };
    rows::decode::<ClusterRow>(&stored).expect("it reads what it writes");
}
