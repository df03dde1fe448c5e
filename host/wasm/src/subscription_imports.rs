//! The import `ostraca:entity/subscriptions`.

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, WasmStr};

use crate::guest_text::plain_text;
use crate::instance_data::InstanceData;
use crate::tell_imports::{GuestEntity, METHOD_LIMIT, check_target};
use crate::tells::GuestTell;

type Cx<'a> = StoreContextMut<'a, InstanceData>;

/// The methods of the tells that make and end subscriptions. No guest can declare them.
const SUBSCRIBE: &str = "\u{1}subscribe";
const UNSUBSCRIBE: &str = "\u{1}unsubscribe";

/// Maximum length of a channel's name in bytes.
const NAME_LIMIT: usize = 128;

pub(crate) fn link(linker: &mut Linker<InstanceData>) -> wasmtime::Result<()> {
    let mut subscriptions = linker.instance("ostraca:entity/subscriptions@0.1.0")?;
    subscriptions.func_wrap(
        "subscribe",
        |mut cx: Cx<'_>, (publisher, channel, method): (GuestEntity, WasmStr, WasmStr)| {
            cx.data().may_write("a subscription was made")?;
            let call = "subscriptions.subscribe was called with a method";
            let method = plain_text(&cx, &method, call, 1..=METHOD_LIMIT)?;
            send(&mut cx, &publisher, &channel, SUBSCRIBE, &method)
        },
    )?;
    subscriptions.func_wrap(
        "unsubscribe",
        |mut cx: Cx<'_>, (publisher, channel): (GuestEntity, WasmStr)| {
            cx.data().may_write("a subscription was ended")?;
            send(&mut cx, &publisher, &channel, UNSUBSCRIBE, "")
        },
    )?;
    Ok(())
}

/// Adds the tell to the turn. Its body is the channel, a line feed, and the method.
fn send(
    cx: &mut Cx<'_>,
    publisher: &GuestEntity,
    channel: &WasmStr,
    topic: &str,
    method: &str,
) -> wasmtime::Result<()> {
    let (entity_type, id) = check_target(cx, "subscriptions", publisher)?;
    let call = "subscriptions was called with a channel";
    let channel = plain_text(cx, channel, call, 1..=NAME_LIMIT)?;
    let tell = GuestTell {
        entity_type: entity_type.into(),
        id: id.into(),
        method: topic.into(),
        body: format!("{channel}\n{method}").into(),
        content_type: "".into(),
    };
    let limits = cx.data().limits.clone();
    let delayed = cx.data_mut().timers.delayed_use();
    cx.data_mut().tells.add(tell, delayed, &limits)?;
    Ok(())
}
