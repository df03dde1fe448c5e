//! Checks strings that a guest passes to the host.

use std::ops::RangeInclusive;

use wasmtime::StoreContextMut;
use wasmtime::component::WasmStr;

use crate::instance_data::InstanceData;
use crate::text::is_control;
use crate::trap::HostTrap;

/// Returns a string from the guest if its length in bytes is one of `lengths`. `call` names the call and the argument
/// in the error.
pub(crate) fn guest_text(
    cx: &StoreContextMut<'_, InstanceData>,
    text: &WasmStr,
    call: &str,
    lengths: RangeInclusive<usize>,
) -> wasmtime::Result<String> {
    let text = text.to_str(cx)?;
    if !lengths.contains(&text.len()) {
        let (length, least, most) = (text.len(), lengths.start(), lengths.end());
        let why = format!("{call} of {length} bytes, must be {least} to {most}");
        return Err(HostTrap::InvalidHostCall(why).into());
    }
    Ok(text.into_owned())
}

/// Like [`guest_text`], but also refuses control characters: for names that are shown to people.
pub(crate) fn plain_text(
    cx: &StoreContextMut<'_, InstanceData>,
    text: &WasmStr,
    call: &str,
    lengths: RangeInclusive<usize>,
) -> wasmtime::Result<String> {
    let text = guest_text(cx, text, call, lengths)?;
    if text.chars().any(is_control) {
        let why = format!("{call} that contains a control character: {text:?}");
        return Err(HostTrap::InvalidHostCall(why).into());
    }
    Ok(text)
}
