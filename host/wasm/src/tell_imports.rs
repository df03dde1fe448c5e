//! The import `ostraca:entity/messaging`.

use std::sync::Arc;

use bytes::Bytes;
use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentType, Lift, Linker, Lower, WasmList, WasmStr};

use crate::guest_text::{guest_text, plain_text};
use crate::instance_data::InstanceData;
use crate::tells::GuestTell;
use crate::timers::NAME_LIMIT;
use crate::trap::HostTrap;

type Cx<'a> = StoreContextMut<'a, InstanceData>;

/// Maximum lengths of an entity id and of a method, in bytes.
const ID_LIMIT: usize = 512;
pub(crate) const METHOD_LIMIT: usize = 128;
/// Maximum length of a content type, in bytes.
const CONTENT_TYPE_LIMIT: usize = 128;
/// Maximum total length in bytes of both entities' types and ids: they share one key of the store.
const NAMES_LIMIT: usize = 800;

/// The WIT's `entity`, as the guest passes it.
#[derive(ComponentType, Lift)]
#[component(record)]
pub(crate) struct GuestEntity {
    #[component(name = "entity-type")]
    pub(crate) entity_type: WasmStr,
    id: WasmStr,
}

/// The WIT's `entity`, as the guest receives it.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitEntity {
    #[component(name = "entity-type")]
    entity_type: Arc<str>,
    id: Arc<str>,
}

/// The WIT's `delayed-tell`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitDelayedTell {
    name: Arc<str>,
    due: u64,
    target: WitEntity,
    method: Arc<str>,
    body: Arc<[u8]>,
    #[component(name = "content-type")]
    content_type: Arc<str>,
}

impl From<(Arc<str>, u64, GuestTell)> for WitDelayedTell {
    fn from((name, due, tell): (Arc<str>, u64, GuestTell)) -> Self {
        WitDelayedTell {
            name,
            due,
            target: WitEntity { entity_type: tell.entity_type, id: tell.id },
            method: tell.method,
            body: Arc::from(&tell.body[..]),
            content_type: tell.content_type,
        }
    }
}

/// A tell's parameters.
type Passed = (GuestEntity, WasmStr, WasmList<u8>, WasmStr);

pub(crate) fn link(linker: &mut Linker<InstanceData>) -> wasmtime::Result<()> {
    let mut messaging = linker.instance("ostraca:entity/messaging@0.1.0")?;
    messaging.func_wrap("tell", |mut cx: Cx<'_>, passed: Passed| {
        cx.data().may_write("a tell was sent")?;
        let limits = cx.data().limits.clone();
        // Checked before copying, since the body may be as large as the guest's memory.
        let would = passed.2.len() as u64;
        if would > limits.outbox_bytes {
            return Err(HostTrap::OutboxTooLarge { would, limit: limits.outbox_bytes }.into());
        }
        let tell = read_tell(&cx, &passed)?;
        let delayed = cx.data_mut().timers.delayed_use();
        cx.data_mut().tells.add(tell, delayed, &limits)?;
        Ok(())
    })?;
    messaging.func_wrap(
        "tell-at",
        |mut cx: Cx<'_>,
         (name, due, target, method, body, content_type): (
            WasmStr,
            u64,
            GuestEntity,
            WasmStr,
            WasmList<u8>,
            WasmStr,
        )| {
            cx.data().may_write("a tell was sent")?;
            let name = own_name(&cx, &name)?;
            let limits = cx.data().limits.clone();
            let would = body.len() as u64;
            if would > limits.timer_bytes {
                return Err(HostTrap::TimersTooLarge { would, limit: limits.timer_bytes }.into());
            }
            let tell = read_tell(&cx, &(target, method, body, content_type))?;
            cx.data_mut().timers.set_tell(&name, due, tell, &limits)?;
            let delayed = cx.data_mut().timers.delayed_use();
            cx.data().tells.check_room(delayed, &limits)?;
            Ok(())
        },
    )?;
    messaging.func_wrap("cancel-tell", |mut cx: Cx<'_>, (name,): (WasmStr,)| {
        cx.data().may_write("a tell was cancelled")?;
        let name = own_name(&cx, &name)?;
        let limits = cx.data().limits.clone();
        Ok((cx.data_mut().timers.cancel_tell(&name, &limits)?,))
    })?;
    messaging.func_wrap("delayed-tells", |mut cx: Cx<'_>, (): ()| {
        let tells = cx.data_mut().timers.list_tells();
        Ok((tells.into_iter().map(WitDelayedTell::from).collect::<Vec<_>>(),))
    })?;
    Ok(())
}

fn own_name(cx: &Cx<'_>, name: &WasmStr) -> wasmtime::Result<String> {
    plain_text(cx, name, "messaging was called with a name", 1..=NAME_LIMIT)
}

/// Checks a tell, and copies it out of the guest's memory.
fn read_tell(cx: &Cx<'_>, passed: &Passed) -> wasmtime::Result<GuestTell> {
    check_target(cx, "messaging", &passed.0)?;
    read_message(cx, "messaging", passed)
}

/// Checks the target of a tell, and returns its type and its id.
pub(crate) fn check_target(
    cx: &Cx<'_>,
    interface: &str,
    target: &GuestEntity,
) -> wasmtime::Result<(String, String)> {
    let entity_type = target.entity_type.to_str(cx)?.into_owned();
    if !cx.data().limits.tell.contains(&entity_type) {
        return Err(HostTrap::TellNotGranted(entity_type).into());
    }
    let id =
        guest_text(cx, &target.id, &format!("{interface} was called with an id"), 1..=ID_LIMIT)?;
    let own = cx.data().log.identity().clone();
    // The target's type is in the same namespace, which is part of its name in the key.
    let namespace = own.entity_type.split_once(':').map_or(0, |(namespace, _)| namespace.len() + 1);
    let names = own.entity_type.len() + own.id.len() + namespace + entity_type.len() + id.len();
    if names > NAMES_LIMIT {
        return Err(HostTrap::InvalidHostCall(format!(
            "{interface} was called with types and ids of sender and target that total {names} bytes; the limit is {NAMES_LIMIT}"
        ))
        .into());
    }
    Ok((entity_type, id))
}

/// Checks the names in a message to another entity, and copies the message out of the guest's memory.
pub(crate) fn read_message(
    cx: &Cx<'_>,
    interface: &str,
    (target, method, body, content_type): &Passed,
) -> wasmtime::Result<GuestTell> {
    let with = |what: &str| format!("{interface} was called with {what}");
    let id = guest_text(cx, &target.id, &with("an id"), 1..=ID_LIMIT)?;
    let method = plain_text(cx, method, &with("a method"), 1..=METHOD_LIMIT)?;
    let content_type =
        plain_text(cx, content_type, &with("a content type"), 0..=CONTENT_TYPE_LIMIT)?;
    Ok(GuestTell {
        entity_type: target.entity_type.to_str(cx)?.into(),
        id: id.into(),
        method: method.into(),
        body: Bytes::copy_from_slice(body.as_le_slice(cx)),
        content_type: content_type.into(),
    })
}
