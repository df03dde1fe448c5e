use std::path::Path;

use bytes::Bytes;
use futures::executor::block_on;
use ostraca_core::ids::{ClusterId, ShardId};

use super::*;
use crate::transfer::StoreContents;

fn shard(number: u32) -> ShardPath {
    ShardPath { namespace: "n".into(), pool: "p".into(), shard: ShardId(number) }
}

fn state(id: &str, key: &str, value: &str) -> BackupRecord {
    BackupRecord::Item(Item::Record {
        shard: shard(1),
        entity: Entity::new("t", id),
        key: RecordKey::State(Bytes::copy_from_slice(key.as_bytes())),
        value: Bytes::copy_from_slice(value.as_bytes()),
    })
}

fn removed(id: &str, key: &str) -> BackupRecord {
    let key = RecordKey::State(Bytes::copy_from_slice(key.as_bytes()));
    BackupRecord::Removed { shard: shard(1), entity: Entity::new("t", id), key: Some(key) }
}

fn row(key: &str) -> BackupRecord {
    BackupRecord::Item(Item::Row { key: key.into(), value: "v".into() })
}

fn manifest(taken_unix_s: u64) -> Manifest {
    Manifest {
        cluster: ClusterId(7),
        cluster_name: "of two words".into(),
        store_id: 9,
        sequence: 30,
        taken_unix_s,
        chunks: Vec::new(),
    }
}

/// Writes a backup with these chunks of records; returns its name.
fn write(dir: &Path, taken_unix_s: u64, chunks: &[(Section, Vec<BackupRecord>)]) -> String {
    let mut writer = BackupWriter::new(dir).unwrap();
    for (section, records) in chunks {
        writer.add(*section, &encode_chunk(records).unwrap()).unwrap();
    }
    writer.finish(manifest(taken_unix_s)).unwrap()
}

/// The values of all states, by key, and the keys of rows.
fn read(contents: &mut BackupContents) -> Vec<(String, String)> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = block_on(contents.page(cursor)).unwrap();
        for item in page.items {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            found.push(match item {
                Item::Record { entity, key: RecordKey::State(key), value, .. } => {
                    (format!("{entity}.{}", text(&key)), text(&value))
                }
                Item::Row { key, value } => (key, text(&value)),
                other => panic!("{other:?}"),
            });
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            found.sort();
            return found;
        }
    }
}

#[test]
fn what_was_read_last_replaces_what_was_read_before() {
    let dir = tempfile::tempdir().unwrap();
    let chunks = [
        (Section::Round(0), vec![state("a", "k", "0"), state("a", "l", "0"), state("b", "k", "0")]),
        (Section::Round(1), vec![state("a", "k", "1"), removed("a", "l"), state("c", "k", "1")]),
        (Section::Round(2), vec![state("a", "l", "2"), removed("c", "k")]),
        (Section::Rows, vec![row("r")]),
    ];
    write(dir.path(), 1, &chunks);
    let mut contents = BackupContents::open(dir.path(), None).unwrap();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let expected = [pair("r", "v"), pair("t/a.k", "1"), pair("t/a.l", "2"), pair("t/b.k", "0")];
    assert_eq!(read(&mut contents), expected);
    assert_eq!((contents.identity().durable_sequence, contents.identity().store_id), (30, 9));
}

#[test]
fn a_backup_is_chosen_by_name_and_the_newest_by_default() {
    let dir = tempfile::tempdir().unwrap();
    let chunks = |value| [(Section::Round(0), vec![state("a", "k", value)])];
    let first = write(dir.path(), 1_795_783_445, &chunks("1"));
    let second = write(dir.path(), 1_795_783_446, &chunks("2"));
    assert_eq!(list_backups(dir.path()).unwrap(), [&*first, &second]);
    let value = |name| {
        let mut contents = BackupContents::open(dir.path(), name).unwrap();
        read(&mut contents).remove(0).1
    };
    assert_eq!(
        (value(None), value(Some(&first)), value(Some(&second))),
        ("2".into(), "1".into(), "2".into())
    );
    let error = BackupContents::open(dir.path(), Some("never")).unwrap_err().to_string();
    assert!(error.contains("never") && error.contains(&first), "{error}");
}

#[test]
fn chunks_that_are_there_are_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let all: Vec<_> = (0..6000).map(|n| state(&format!("{n:05}"), "k", &"v".repeat(500))).collect();
    let chunks = |records: &[BackupRecord]| {
        let mut chunker = Chunker::default();
        let mut chunks = Vec::new();
        for record in records {
            chunks.extend(chunker.add(record.clone()).unwrap());
        }
        chunks.extend(chunker.finish().unwrap());
        chunks
    };
    let back_up = |records: &[BackupRecord]| {
        let mut writer = BackupWriter::new(dir.path()).unwrap();
        for chunk in chunks(records) {
            writer.add(Section::Round(0), &chunk).unwrap();
        }
        let written = writer.written();
        writer.finish(manifest(1)).unwrap();
        written
    };
    let (count, bytes, new) = back_up(&all);
    assert!(count > 5 && bytes == new, "{count} chunks of {bytes} bytes, {new} new");
    assert_eq!(back_up(&all), (count, bytes, 0));
    // One record more, and one that is changed: the chunks around them alone are new.
    let mut changed = all.clone();
    changed[2000] = state("02000", "k", "other");
    changed.insert(4000, state("04000", "j", "more"));
    let (_, bytes, new) = back_up(&changed);
    assert!(new > 0 && new < bytes / 2, "{new} of {bytes} bytes are new");
}

#[test]
fn a_damaged_or_incomplete_backup_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let name = write(dir.path(), 1, &[(Section::Round(1), vec![state("a", "k", "1")])]);
    let path = dir.path().join("backups").join(&name);
    let text = std::fs::read_to_string(&path).unwrap();
    let damaged = |what: &str| match BackupContents::open(dir.path(), None) {
        Err(BackupError::Damaged(text)) => assert!(text.contains(what), "{text}"),
        other => panic!("{other:?}"),
    };
    for cut in [0, 20, text.len() / 2, text.len() - 1] {
        std::fs::write(&path, &text[..cut]).unwrap();
        damaged("not a complete manifest");
    }
    std::fs::write(&path, text.replace("0000007", "0000008")).unwrap();
    damaged("not a complete manifest");
    std::fs::write(&path, &text).unwrap();
    let chunk = std::fs::read_dir(dir.path().join("chunks")).unwrap().next().unwrap().unwrap();
    std::fs::write(chunk.path(), "other").unwrap();
    damaged("does not have its digest");
    std::fs::remove_file(chunk.path()).unwrap();
    damaged("is missing");
}

#[test]
fn a_backup_is_never_written_among_other_files() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(list_backups(dir.path()), Err(BackupError::NoBackup(_))));
    std::fs::write(dir.path().join("other"), "").unwrap();
    let error = BackupWriter::new(dir.path()).unwrap_err();
    assert!(matches!(error, BackupError::OtherDirectory(_)), "{error}");
}

#[test]
fn the_bytes_of_a_backup_do_not_change() {
    let records = [state("a", "k", "v"), removed("a", "l"), row("r")];
    let golden = b"\x01\x03\
        \x00\x02\x01n\x01p\x01\x01t\x01a\x00\x01k\x01v\
        \x01\x01n\x01p\x01\x01t\x01a\x01\x00\x01l\
        \x00\x04\x01r\x01v";
    assert_eq!(encode_chunk(&records).unwrap(), golden);
    assert_eq!(decode_chunk(golden).unwrap(), records);
    for bytes in [&b""[..], b"\x02\x00", b"\x01", b"\x01\x01\x09"] {
        assert!(matches!(decode_chunk(bytes), Err(StoreError::Corrupt(_))), "{bytes:?}");
    }
    let manifest = Manifest {
        chunks: vec![(Section::Shards, [1; 32]), (Section::Round(2), [2; 32])],
        ..manifest(5)
    };
    let text = manifest.to_text();
    let lines: Vec<_> = text.lines().collect();
    let (one, two) = ("01".repeat(32), "02".repeat(32));
    assert_eq!(
        lines[..6],
        [
            "ostraca backup 1",
            &format!("cluster {:032x} of two words", 7),
            &format!("store {:032x} 30", 9),
            "taken 5",
            &format!("shards {one}"),
            &format!("round-2 {two}"),
        ]
    );
    assert_eq!(Manifest::parse(&text), Some(manifest));
}
