//! Directories in various conditions, the witness, and what must never appear in sled's directory.

use std::fs;
use std::path::{Path, PathBuf};

use futures::executor::block_on;
use ostraca_core::ids::ClusterId;
use ostraca_core::records::CommitOutcome;
use ostraca_store::EntityStore;

use super::{CLUSTER, claimed, create, set, turn};
use crate::{OpenError, Options, SledStore};

fn open(dir: &Path) -> Result<SledStore, OpenError> {
    SledStore::open(dir, &Options::default())
}

#[test]
fn an_empty_or_missing_directory_is_not_turned_into_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    assert!(matches!(open(&missing), Err(OpenError::Missing(at)) if at == missing));
    assert!(!missing.exists());
    assert!(matches!(open(dir.path()), Err(OpenError::Empty(_))));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    fs::write(dir.path().join("something"), "").unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::NotAStore(_))));
    let created = SledStore::create(dir.path(), &Options::default(), CLUSTER, "test");
    assert!(matches!(created, Err(OpenError::NotEmpty(_))));
}

#[test]
fn a_store_whose_creation_was_interrupted_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    drop(create(dir.path(), &Options::default()));
    fs::remove_file(dir.path().join("format")).unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::NotAStore(_))));
}

#[test]
fn a_store_in_use_is_refused_with_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path(), &Options::default());
    let error = open(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }));
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(store);
    open(dir.path()).unwrap();
}

#[test]
fn a_store_of_a_newer_format_is_refused_untouched() {
    let dir = tempfile::tempdir().unwrap();
    drop(create(dir.path(), &Options::default()));
    fs::write(dir.path().join("format"), "ostraca store, format 3\n").unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::NewerFormat { format: 3, ours: 2, .. })));
    fs::write(dir.path().join("format"), "ostraca store, format 1\n").unwrap();
    let error = open(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::OlderFormat { format: 1, ours: 2, .. }), "{error}");
    assert!(error.to_string().contains("ostraca init"), "{error}");
    fs::write(dir.path().join("format"), "rubbish").unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::NotAStore(_))));
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    // Not even root can create directories there.
    let created =
        SledStore::create(Path::new("/sys/ostraca"), &Options::default(), CLUSTER, "test");
    assert!(matches!(created, Err(OpenError::Unwritable { .. })), "{created:?}");
}

#[test]
fn another_clusters_store_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    drop(create(dir.path(), &Options::default()));
    let options = Options { cluster: Some(ClusterId(8)), ..Options::default() };
    let error = SledStore::open(dir.path(), &options).unwrap_err();
    assert!(matches!(&error, OpenError::OtherCluster { name, .. } if name == "test"), "{error}");
    let options = Options { cluster: Some(CLUSTER), ..Options::default() };
    SledStore::open(dir.path(), &options).unwrap();
}

#[test]
fn a_store_with_missing_or_corrupt_files_is_refused() {
    for (file, break_it) in [
        ("db", (|path| fs::write(path, vec![0xa5; 100_000]).unwrap()) as fn(&PathBuf)),
        ("db", |path| fs::remove_file(path).unwrap()),
        ("conf", |path| fs::write(path, b"not what sled wrote, long enough").unwrap()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let store = create(dir.path(), &Options::default());
        let claim = claimed(&store);
        block_on(store.commit(vec![turn(&claim, "a", 0)]));
        drop(store);
        break_it(&dir.path().join("sled").join(file));
        let error = open(dir.path()).map(drop).unwrap_err();
        assert!(
            matches!(error, OpenError::Corrupt { .. } | OpenError::Io { .. }),
            "{file}: {error}"
        );
    }
}

#[test]
fn half_made_snapshots_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(create(dir.path(), &Options::default()));
    let half = dir.path().join("sled/snap.0000000000000001.generating");
    fs::write(&half, "half").unwrap();
    open(dir.path()).unwrap();
    assert!(!half.exists());
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target)
        } else {
            fs::copy(&path, &target).map(drop).unwrap()
        }
    }
}

#[test]
fn the_witness_detects_other_forked_and_rolled_back_stores() {
    let root = tempfile::tempdir().unwrap();
    let [store_dir, copied, other] = ["store", "copy", "other"].map(|name| root.path().join(name));
    let options = Options { witness: Some(root.path().join("witness")), ..Options::default() };
    let open = |dir: &Path| SledStore::open(dir, &options);
    let blind = |dir: &Path| SledStore::open(dir, &Options::default()).unwrap();
    let store = create(&store_dir, &options);
    let claim = claimed(&store);
    drop(store);
    drop(blind(&store_dir));
    drop(open(&store_dir).expect("openings without the witness are not a fork"));
    copy(&store_dir, &copied);

    // The store advances, and the witness records this; the copy does not have the new turn.
    let store = blind(&store_dir);
    drop(store);
    let store = open(&store_dir).unwrap();
    assert_eq!(block_on(store.commit(vec![turn(&claim, "a", 0)])), [CommitOutcome::Committed]);
    block_on(store.refresh_witness()).unwrap();
    drop(store);
    assert!(matches!(open(&copied), Err(OpenError::RolledBack { .. })));

    // The copy advances past the store, with a different history.
    let forked = blind(&copied);
    for from in 0..9 {
        assert_eq!(
            block_on(forked.commit(vec![turn(&claim, "a", from)])),
            [CommitOutcome::Committed]
        );
    }
    drop(forked);
    for _ in 0..3 {
        drop(blind(&copied));
    }
    assert!(matches!(open(&copied), Err(OpenError::Forked { .. })));

    drop(create(&other, &Options::default()));
    assert!(matches!(open(&other), Err(OpenError::OtherStore { .. })));
    drop(open(&store_dir).expect("refused stores have not changed the witness"));
    fs::write(root.path().join("witness"), "ostraca witness 1\nrubbish\n").unwrap();
    assert!(matches!(open(&store_dir), Err(OpenError::InvalidWitness(_))));
}

#[test]
fn a_component_that_was_changed_on_disk_is_not_returned() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path(), &Options::default());
    let digest = block_on(store.put_blob("component".into())).unwrap();
    let file = fs::read_dir(dir.path().join("components")).unwrap().next().unwrap().unwrap();
    fs::write(file.path(), "Component").unwrap();
    assert!(block_on(store.get_blob(digest)).is_err());
    block_on(store.put_blob("component".into())).unwrap();
    assert_eq!(block_on(store.get_blob(digest)).unwrap().unwrap(), "component");
}

#[test]
fn no_write_creates_a_blob_file_that_sled_does_not_sync() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path(), &Options::default());
    let claim = claimed(&store);
    let mut version = 0;
    let mut commit = |writes| {
        let mut next = turn(&claim, "a", version);
        next.writes = writes;
        version += 1;
        assert_eq!(block_on(store.commit(vec![next])), [CommitOutcome::Committed]);
        let blobs = fs::read_dir(dir.path().join("sled/blobs")).unwrap().count();
        assert_eq!(blobs, 0);
    };
    for round in 0..3 {
        commit((0..4).map(|key| set(vec![key], vec![round; 1024 * 1024])).collect());
        commit((0..200).map(|key| set(vec![100, key], vec![round; 4091])).collect());
    }
    // The longest keys, which differ only at their ends, produce sled's largest index pages.
    for start in 0..80_u16 {
        let long = |at: u16| {
            let mut key = vec![b'k'; 900];
            key.extend_from_slice(&(start * 100 + at).to_be_bytes());
            set(key, vec![1])
        };
        commit((0..100).map(long).collect());
    }
}
