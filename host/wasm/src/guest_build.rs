//! How `ostraca build` and the test kit have cargo build Rust guests. Both do the same, so that each reuses what the
//! other has built.

/// The target of components.
pub const GUEST_TARGET: &str = "wasm32-unknown-unknown";

/// The release profile, as environment variables of cargo. Small and fast; a panic is a trap. Durable state must not wrap
/// silently, so overflow panics, as in tests.
pub const GUEST_PROFILE: [(&str, &str); 7] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true"),
    ("CARGO_PROFILE_RELEASE_STRIP", "debuginfo"),
];
