//! The release that this program is.

use std::sync::OnceLock;

static VERSION: OnceLock<u64> = OnceLock::new();

/// The program's version as one number that increases with each version: 1.2.3 is 1,002,003.
#[must_use]
pub fn version() -> u64 {
    let part = |text: &str| text.parse::<u64>().unwrap_or(0);
    let own = || {
        (part(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000 + part(env!("CARGO_PKG_VERSION_MINOR")))
            * 1_000
            + part(env!("CARGO_PKG_VERSION_PATCH"))
    };
    *VERSION.get_or_init(own)
}

/// Makes this program the release with this version. For tests of upgrades, at the start of a program.
pub fn become_version(version: u64) {
    // A program becomes one release.
    let _ = VERSION.set(version);
}
