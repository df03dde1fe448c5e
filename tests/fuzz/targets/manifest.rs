//! A manifest as a client uploads it: any text is read, or refused with a sentence.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca_config::Manifest;

fuzz_target!(|text: &str| {
    if let Err(refused) = Manifest::parse(text, "entity.toml") {
        assert!(!refused.to_string().is_empty());
    }
});
