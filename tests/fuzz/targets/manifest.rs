//! Fuzzes a manifest as a client uploads it: any text is accepted, or refused with a message.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca_config::Manifest;

fuzz_target!(|text: &str| {
    if let Err(refused) = Manifest::parse(text, "entity.toml") {
        assert!(!refused.to_string().is_empty());
    }
});
