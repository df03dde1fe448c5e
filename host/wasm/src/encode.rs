//! Converts a core module with embedded component types into a component.

use wit_component::ComponentEncoder;

use crate::Error;

/// The format that the first eight bytes indicate.
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

/// Fails unless the bytes are a component.
pub(crate) fn check(bytes: &[u8]) -> Result<(), Error> {
    match format(bytes) {
        Format::Component => Ok(()),
        Format::CoreModule => Err(Error::CoreModule),
        Format::Neither => Err(Error::NotWasm { bytes: bytes.len() }),
    }
}

/// Converts a core module that was built for `wasm32-unknown-unknown` with wit-bindgen into a component. Returns a
/// component unchanged. Fails with `not-wasm`, or with `encode-failed` if the module lacks the component types or has
/// imports that they do not name.
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
