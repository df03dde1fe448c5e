//! From a core module with embedded component types to a component.

use wit_component::ComponentEncoder;

use crate::Error;

/// What the first eight bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Component,
    CoreModule,
    Neither,
}

fn format(bytes: &[u8]) -> Format {
    match bytes.get(..8) {
        Some([0, b'a', b's', b'm', _, _, 1, 0]) => Format::Component,
        Some([0, b'a', b's', b'm', 1, 0, 0, 0]) => Format::CoreModule,
        _ => Format::Neither,
    }
}

/// Refuses what is no component.
pub(crate) fn check(bytes: &[u8]) -> Result<(), Error> {
    match format(bytes) {
        Format::Component => Ok(()),
        Format::CoreModule => Err(Error::CoreModule),
        Format::Neither => Err(Error::NotWasm { bytes: bytes.len() }),
    }
}

/// Makes a component of a core module built for `wasm32-unknown-unknown` with wit-bindgen. A component passes through
/// unchanged. Fails with `not-wasm`, or `encode-failed` for a module without the types or with imports that they don't name.
pub fn encode(module: &[u8]) -> Result<Vec<u8>, Error> {
    match format(module) {
        Format::Component => Ok(module.to_vec()),
        Format::Neither => Err(Error::NotWasm { bytes: module.len() }),
        Format::CoreModule => ComponentEncoder::default()
            .validate(true)
            .module(module)
            .and_then(|mut encoder| encoder.encode())
            .map_err(|error| Error::EncodeFailed(format!("{error:#}"))),
    }
}
