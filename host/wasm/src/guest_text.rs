//! Texts that a guest passes to the host, checked.

use std::ops::RangeInclusive;

use wasmtime::StoreContextMut;
use wasmtime::component::WasmStr;

use crate::instance_data::InstanceData;
use crate::text::is_control;
use crate::trap::HostTrap;

/// A text of as many bytes as it may have. `call` names the call and the argument in the error.
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

/// A [`guest_text`] without control characters: a name that is shown to people.
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
