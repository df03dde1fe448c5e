//! The import `ostraca:entity/channels`.

use bytes::Bytes;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, WasmList, WasmStr};

use crate::guest_text::plain_text;
use crate::instance_data::InstanceData;

type Cx<'a> = StoreContextMut<'a, InstanceData>;

/// Maximum length of a channel's name in bytes.
const NAME_LIMIT: usize = 128;

pub(crate) fn link(linker: &mut Linker<InstanceData>) -> wasmtime::Result<()> {
    let mut channels = linker.instance("ostraca:entity/channels@0.1.0")?;
    channels.func_wrap("emit", |mut cx: Cx<'_>, (channel, item): (WasmStr, WasmList<u8>)| {
        cx.data().may_write("an item was emitted")?;
        let call = "channels.emit was called with a channel";
        let channel = plain_text(&cx, &channel, call, 1..=NAME_LIMIT)?;
        let entity = cx.data();
        let beside = entity.state_bytes_written() + entity.journal.written();
        entity.channels.may_emit(&channel, item.len() as u64, beside, &entity.limits)?;
        let data = Bytes::copy_from_slice(item.as_le_slice(&cx));
        if cx.data().has_subscribers {
            let (limits, bytes) = (cx.data().limits.clone(), (channel.len() + data.len()) as u64);
            let delayed = cx.data_mut().timers.delayed_use();
            cx.data_mut().tells.add_item(bytes, delayed, &limits)?;
        }
        cx.data_mut().channels.emit(channel.into(), data);
        Ok(())
    })
}
