//! Fuzzes the bytes that may be on a disk: keys and records. A decoded record encodes to bytes that decode to the same
//! value.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca_core::records::{Head, Lane};
use ostraca_store::keys::parse_entity;
use ostraca_store::record::{Body, Codec};

fuzz_target!(|data: &[u8]| {
    let Some((&key, rest)) = data.split_first() else { return };
    let (key, record) = rest.split_at(usize::from(key).min(rest.len()));
    let _ = parse_entity(key);
    same::<Head>(key, record);
    same::<Lane>(key, record);
});

fn same<T: Body + PartialEq + std::fmt::Debug>(key: &[u8], record: &[u8]) {
    let codec = Codec::default();
    if let Ok(value) = codec.decode::<T>(key, record) {
        let written = codec.encode(key, &value).expect("written");
        assert_eq!(codec.decode::<T>(key, &written).expect("read again"), value);
    }
}
