//! A store is copied to another place while no process has it open (R26).

use std::path::{Path, PathBuf};

use ostraca_store::conformance::copied::{Faulty, Seen, copied, fill, goes_on, read};
use ostraca_store::conformance::{CLUSTER, CLUSTER_NAME};
use ostraca_store::transfer::{CopyError, CopyTarget, ItemKind, StoreContents};
use ostraca_store_sled::{OpenError, Options, SledCopySource, SledCopyTarget, SledStore};

/// A filled store that nobody has open, and what it shows.
struct Filled {
    root: tempfile::TempDir,
    seen: Seen,
}

impl Filled {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let options = Options::default();
        let dir = root.path().join("from");
        let store = SledStore::create(&dir, &options, CLUSTER, CLUSTER_NAME).expect("a store");
        fill(&store);
        let seen = read(&store);
        Self { root, seen }
    }

    fn from(&self) -> PathBuf {
        self.root.path().join("from")
    }

    fn to(&self) -> PathBuf {
        self.root.path().join("to")
    }

    fn source(&self) -> SledCopySource {
        SledCopySource::open(&self.from(), &Options::default()).expect("the source")
    }

    fn target(&self, source: &SledCopySource) -> SledCopyTarget {
        let identity = source.identity();
        SledCopyTarget::open(&self.to(), &Options::default(), &identity).expect("the target")
    }
}

fn open(dir: &Path) -> Result<SledStore, OpenError> {
    SledStore::open(dir, &Options::default())
}

#[test]
fn a_copy_shows_all_that_its_source_did_and_goes_on() {
    let filled = Filled::new();
    let mut source = filled.source();
    let mut target = filled.target(&source);
    let summary = copied(&mut source, &mut target).expect("a copy");
    let counts = ItemKind::ALL.map(|kind| summary.of(kind).count);
    assert_eq!(counts, [3, 2401, 2414, 1, 1100]);
    drop((source, target));
    let store = open(&filled.to()).expect("the copy");
    assert_eq!(read(&store), filled.seen);
    goes_on(&store);
}

#[test]
fn r26_the_source_of_a_copy_is_never_opened_again() {
    let filled = Filled::new();
    let mut source = filled.source();
    let mut target = filled.target(&source);
    copied(&mut source, &mut target).expect("a copy");
    drop((source, target));
    match open(&filled.from()) {
        Err(OpenError::Moved { to, .. }) => assert!(to.contains("/to (store "), "{to}"),
        other => panic!("the source was opened: {other:?}"),
    }
    // Nor is it copied a second time.
    let mut source = filled.source();
    let other = filled.root.path().join("other");
    let options = Options::default();
    let mut target = SledCopyTarget::open(&other, &options, &source.identity()).expect("a target");
    let error = copied(&mut source, &mut target).expect_err("a second copy");
    assert!(matches!(error, CopyError::Moved { .. }), "{error}");
}

#[test]
fn an_interrupted_copy_continues_where_it_ended() {
    let filled = Filled::new();
    for pages in [0, 1, 2, 0, 1] {
        let mut source = filled.source();
        let mut target = filled.target(&source);
        let before = target.state();
        let mut faulty = Faulty { target: &mut target, pages, loses: None };
        copied(&mut source, &mut faulty).expect_err("an interrupted copy");
        assert_eq!(target.state() != before, pages > 0, "each page counts");
        assert!(!target.state().is_complete);
        drop((source, target));
        assert!(matches!(open(&filled.to()), Err(OpenError::NotAStore(_))), "it is unfinished");
        drop(open(&filled.from()).expect("the source can still be used"));
    }
    let mut source = filled.source();
    let mut target = filled.target(&source);
    copied(&mut source, &mut target).expect("the rest");
    drop((source, target));
    let store = open(&filled.to()).expect("the copy");
    assert_eq!(read(&store), filled.seen);
}

#[test]
fn a_copy_that_ends_between_mark_and_finish_is_continued() {
    use futures::executor::block_on;
    use ostraca_store::transfer::{CopySource, Destination};
    let filled = Filled::new();
    let mut source = filled.source();
    let mut target = filled.target(&source);
    let mut faulty = Faulty { target: &mut target, pages: 1, loses: None };
    copied(&mut source, &mut faulty).expect_err("an interrupted copy");
    let to = Destination { store_id: target.identity().store_id, place: target.place() };
    block_on(source.mark_moved(&to)).expect("the mark");
    drop((source, target));
    let mut source = filled.source();
    let mut target = filled.target(&source);
    copied(&mut source, &mut target).expect("the rest");
    drop((source, target));
    assert_eq!(read(&open(&filled.to()).expect("the copy")), filled.seen);
}

#[test]
fn a_copy_that_ends_before_its_last_file_is_continued() {
    let filled = Filled::new();
    let mut source = filled.source();
    let mut target = filled.target(&source);
    copied(&mut source, &mut target).expect("a copy");
    drop((source, target));
    // As after a crash between the mark of the source and the file that completes the target.
    std::fs::remove_file(filled.to().join("format")).expect("removed");
    let mut source = filled.source();
    let mut target = filled.target(&source);
    copied(&mut source, &mut target).expect("the rest");
    drop((source, target));
    assert_eq!(read(&open(&filled.to()).expect("the copy")), filled.seen);
}

#[test]
fn a_copy_that_lacks_an_item_is_never_opened() {
    for kind in ItemKind::ALL {
        let filled = Filled::new();
        let mut source = filled.source();
        let mut target = filled.target(&source);
        let mut faulty = Faulty { target: &mut target, pages: 1000, loses: Some(kind) };
        match copied(&mut source, &mut faulty) {
            Err(CopyError::Differs { kind: found, .. }) => assert_eq!(found, kind),
            other => panic!("a copy without one of the {kind}: {other:?}"),
        }
        drop((source, target));
        assert!(matches!(open(&filled.to()), Err(OpenError::NotAStore(_))));
        drop(open(&filled.from()).expect("the source can still be used"));
    }
}

#[test]
fn a_source_that_was_used_meanwhile_is_copied_anew() {
    let filled = Filled::new();
    let mut source = filled.source();
    let mut target = filled.target(&source);
    let mut faulty = Faulty { target: &mut target, pages: 1, loses: None };
    copied(&mut source, &mut faulty).expect_err("an interrupted copy");
    drop((source, target));
    goes_on(&open(&filled.from()).expect("the source"));
    let mut source = filled.source();
    let mut target = filled.target(&source);
    let error = copied(&mut source, &mut target).expect_err("a copy of two states");
    assert!(matches!(error, CopyError::SourceChanged { .. }), "{error}");
}

#[test]
fn a_copy_of_another_store_is_not_continued() {
    let (filled, other) = (Filled::new(), Filled::new());
    let mut source = filled.source();
    let mut target = filled.target(&source);
    let mut faulty = Faulty { target: &mut target, pages: 1, loses: None };
    copied(&mut source, &mut faulty).expect_err("an interrupted copy");
    let mut source = other.source();
    let error = copied(&mut source, &mut target).expect_err("another source");
    assert!(matches!(error, CopyError::OtherSource { .. }), "{error}");
}

#[test]
fn a_store_in_use_is_not_copied() {
    let filled = Filled::new();
    let _store = open(&filled.from()).expect("the source");
    let error = SledCopySource::open(&filled.from(), &Options::default()).expect_err("in use");
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
}
