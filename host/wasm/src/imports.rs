//! The functions that a guest may call: the imports of `ostraca:entity`.
//!
//! They are linked by hand rather than by `bindgen!`, so that keys and values are read directly from the guest's
//! memory, and written to it directly from the state: one copy each way. Only the functions that may have to load state
//! are asynchronous.

use std::sync::Arc;

use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentType, Linker, Lower, WasmList, WasmStr};

use crate::instance_data::{InstanceData, Phase};
use crate::log::Level;
use crate::state::{Entries, KEY_CHARGE, KEY_LIMIT, State};
use crate::trap::{HostTrap, Panic};
use crate::{
    MessageKind, ask_imports, channel_imports, journal_imports, subscription_imports, tell_imports,
    timer_imports, variable_imports,
};

type Cx<'a> = StoreContextMut<'a, InstanceData>;
type Result<T> = wasmtime::Result<T>;

/// Maximum number of entries in one page of a listing.
const PAGE_LIMIT: u32 = 1_000;
/// Maximum number of random bytes in one call.
const RANDOM_LIMIT: u32 = 64 << 10;
/// Maximum number of bytes kept of a panic's message, and of its file name.
const PANIC_LIMIT: usize = 4 << 10;

#[derive(ComponentType, Lower)]
#[component(record)]
struct WitIdentity {
    namespace: Arc<str>,
    #[component(name = "entity-type")]
    entity_type: Arc<str>,
    id: Arc<str>,
    revision: u64,
}

#[derive(ComponentType, Lower)]
#[component(record)]
struct WitMessage {
    session: String,
    sequence: u64,
    kind: MessageKind,
    principal: Arc<str>,
    #[component(name = "content-type")]
    content_type: Arc<str>,
    traceparent: Arc<str>,
    tracestate: Arc<str>,
    #[component(name = "remaining-ms")]
    remaining_ms: Option<u64>,
    version: u64,
}

#[derive(ComponentType, Lower)]
#[component(record)]
struct Page {
    entries: Entries,
    next: Option<Arc<str>>,
}

/// Adds everything that a guest without WASI may import.
pub(crate) fn link(linker: &mut Linker<InstanceData>) -> Result<()> {
    linker.instance("ostraca:entity/types@0.1.0")?;
    context(linker)?;
    state(linker)?;
    let mut lifecycle = linker.instance("ostraca:entity/lifecycle@0.1.0")?;
    lifecycle.func_wrap("passivate", |mut cx: Cx<'_>, (): ()| {
        cx.data_mut().passivate = true;
        Ok(())
    })?;
    let mut passivation = linker.instance("ostraca:entity/passivation@0.1.0")?;
    passivation.func_wrap("passivate-after", |mut cx: Cx<'_>, (delay,): (Option<u64>,)| {
        cx.data_mut().passivate_after = Some(delay);
        Ok(())
    })?;
    remembering(linker)?;
    deletion(linker)?;
    clock_and_random(linker)?;
    timer_imports::link(linker)?;
    tell_imports::link(linker)?;
    journal_imports::link(linker)?;
    channel_imports::link(linker)?;
    subscription_imports::link(linker)?;
    ask_imports::link(linker)?;
    variable_imports::link(linker)?;
    log(linker)
}

/// The type without the namespace that the cluster's name of it may begin with.
fn local_name(entity_type: Arc<str>) -> Arc<str> {
    match entity_type.split_once(':') {
        None => entity_type,
        Some((_, local)) => local.into(),
    }
}

fn context(linker: &mut Linker<InstanceData>) -> Result<()> {
    let mut context = linker.instance("ostraca:entity/context@0.1.0")?;
    context.func_wrap("self-identity", |cx: Cx<'_>, (): ()| {
        let identity = cx.data().log.identity().clone();
        Ok((WitIdentity {
            namespace: identity.namespace,
            entity_type: local_name(identity.entity_type),
            id: identity.id,
            revision: identity.revision,
        },))
    })?;
    context.func_wrap("current-message", |cx: Cx<'_>, (): ()| {
        let Phase::Message(message) = &cx.data().phase else { return Ok((None,)) };
        Ok((Some(WitMessage {
            session: format!("{:032x}", message.session),
            sequence: message.sequence,
            kind: message.kind,
            principal: message.principal.clone(),
            content_type: message.content_type.clone(),
            traceparent: message.traceparent.clone(),
            tracestate: message.tracestate.clone(),
            remaining_ms: message
                .remaining
                .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            version: message.version,
        }),))
    })?;
    Ok(())
}

fn state(linker: &mut Linker<InstanceData>) -> Result<()> {
    let mut state = linker.instance("ostraca:entity/state@0.1.0")?;
    state.func_wrap_async("get", |mut cx: Cx<'_>, (key,): (WasmStr,)| {
        Box::new(async move {
            load(&mut cx).await?;
            let key = key.to_str(&cx)?;
            check_key(&key)?;
            Ok((awake(cx.data())?.get(&key).cloned(),))
        })
    })?;
    state.func_wrap_async("set", |mut cx: Cx<'_>, (key, value): (WasmStr, WasmList<u8>)| {
        Box::new(async move {
            cx.data().may_write("a key was set")?;
            load(&mut cx).await?;
            let key = own_key(&cx, &key)?;
            let limits = cx.data().limits.clone();
            let limit = limits.state;
            // Checked before copying, since the value may be as large as the guest's memory.
            let would = (key.len() + value.len()) as u64 + KEY_CHARGE;
            let fits = would <= limit
                || awake(cx.data())?.get(&key).is_some_and(|old| value.len() <= old.len());
            if !fits {
                return Err(HostTrap::StateTooLarge { would, limit }.into());
            }
            let value = Arc::from(value.as_le_slice(&cx));
            let entity = cx.data_mut();
            if let Some(state) = &mut entity.state {
                let beside = entity.journal.written() + entity.channels.written();
                state.beside(beside).set(key, value, &limits)?;
            }
            Ok(())
        })
    })?;
    state.func_wrap_async("delete", |mut cx: Cx<'_>, (key,): (WasmStr,)| {
        Box::new(async move {
            cx.data().may_write("a key was deleted")?;
            load(&mut cx).await?;
            let key = own_key(&cx, &key)?;
            let limits = cx.data().limits.clone();
            let entity = cx.data_mut();
            let beside = entity.journal.written() + entity.channels.written();
            let Some(state) = &mut entity.state else { return Ok((false,)) };
            Ok((state.beside(beside).delete(key, &limits)?,))
        })
    })?;
    state.func_wrap_async(
        "list",
        |mut cx: Cx<'_>, (prefix, limit, cursor): (WasmStr, u32, Option<WasmStr>)| {
            Box::new(async move {
                load(&mut cx).await?;
                if !(1..=PAGE_LIMIT).contains(&limit) {
                    return Err(HostTrap::InvalidHostCall(format!(
                        "state.list was called with limit {limit}, must be 1 to {PAGE_LIMIT}"
                    ))
                    .into());
                }
                let prefix = prefix.to_str(&cx)?;
                let cursor = cursor.as_ref().map(|cursor| cursor.to_str(&cx)).transpose()?;
                let (entries, more) =
                    awake(cx.data())?.list(&prefix, limit as usize, cursor.as_deref());
                let next = if more { entries.last().map(|(key, _)| key.clone()) } else { None };
                Ok((Page { entries, next },))
            })
        },
    )?;
    Ok(())
}

fn remembering(linker: &mut Linker<InstanceData>) -> Result<()> {
    let mut remembering = linker.instance("ostraca:entity/remembering@0.1.0")?;
    remembering.func_wrap("remember", |mut cx: Cx<'_>, (): ()| {
        cx.data().may_write("the entity was marked as remembered")?;
        cx.data_mut().remember = Some(true);
        Ok(())
    })?;
    remembering.func_wrap("forget", |mut cx: Cx<'_>, (): ()| {
        cx.data().may_write("the entity was forgotten")?;
        cx.data_mut().remember = Some(false);
        Ok(())
    })?;
    remembering.func_wrap("is-remembered", |cx: Cx<'_>, (): ()| {
        Ok((cx.data().remember.unwrap_or(cx.data().remembered),))
    })
}

fn deletion(linker: &mut Linker<InstanceData>) -> Result<()> {
    let mut deletion = linker.instance("ostraca:entity/deletion@0.1.0")?;
    deletion.func_wrap("delete", |mut cx: Cx<'_>, (): ()| {
        cx.data().may_write("the entity was deleted")?;
        if !cx.data().may_delete {
            let why = "deletion.delete was called in `start` or `stop`";
            return Err(HostTrap::InvalidHostCall(why.into()).into());
        }
        cx.data_mut().delete = true;
        Ok(())
    })?;
    deletion.func_wrap("expire-at", |mut cx: Cx<'_>, (time,): (Option<u64>,)| {
        cx.data().may_write("the entity's expiry was set")?;
        cx.data_mut().expiry = Some(time);
        Ok(())
    })?;
    deletion.func_wrap("expires-at", |cx: Cx<'_>, (): ()| {
        Ok((cx.data().expiry.unwrap_or(cx.data().expires_at),))
    })
}

fn clock_and_random(linker: &mut Linker<InstanceData>) -> Result<()> {
    let mut clock = linker.instance("ostraca:entity/clock@0.1.0")?;
    clock.func_wrap("now", |cx: Cx<'_>, (): ()| Ok((cx.data().turn.utc_ms(),)))?;
    let mut random = linker.instance("ostraca:entity/random@0.1.0")?;
    random.func_wrap("get-bytes", |cx: Cx<'_>, (len,): (u32,)| {
        if len > RANDOM_LIMIT {
            return Err(HostTrap::InvalidHostCall(format!(
                "random.get-bytes was called for {len} bytes, must be at most {RANDOM_LIMIT}"
            ))
            .into());
        }
        let mut bytes = vec![0; len as usize];
        cx.data().turn.fill(&mut bytes);
        Ok((bytes,))
    })?;
    random.func_wrap("get-u64", |cx: Cx<'_>, (): ()| Ok((cx.data().turn.next_u64(),)))?;
    Ok(())
}

fn log(linker: &mut Linker<InstanceData>) -> Result<()> {
    let mut log = linker.instance("ostraca:entity/log@0.1.0")?;
    log.func_wrap("log", |cx: Cx<'_>, (level, line): (Level, WasmStr)| {
        cx.data().log.line(level, &line.to_str(&cx)?);
        Ok(())
    })?;
    log.func_wrap(
        "report-panic",
        |mut cx: Cx<'_>, (message, file, line): (WasmStr, WasmStr, u32)| {
            let message = cut(&message.to_str(&cx)?);
            let file = cut(&file.to_str(&cx)?);
            let entity = cx.data_mut();
            entity.panic = Some(Panic { message, file, line });
            Ok(())
        },
    )?;
    Ok(())
}

/// Loads the state on first access (E16). The time is not charged to the guest.
async fn load(cx: &mut Cx<'_>) -> Result<()> {
    let entity = cx.data_mut();
    if entity.state.is_some() {
        return Ok(());
    }
    entity.meter.enter_host();
    let loaded = entity.source.load().await;
    entity.meter.leave_host();
    let entries = loaded.map_err(|error| HostTrap::StateUnavailable(error.to_string()))?;
    entity.state = Some(State::from_store(entries)?);
    Ok(())
}

fn awake(entity: &InstanceData) -> std::result::Result<&State, HostTrap> {
    let not_loaded = || HostTrap::StateUnavailable("the state was not loaded".into());
    entity.state.as_ref().ok_or_else(not_loaded)
}

fn check_key(key: &str) -> std::result::Result<(), HostTrap> {
    if key.is_empty() || key.len() > KEY_LIMIT {
        let length = key.len();
        return Err(HostTrap::InvalidHostCall(format!(
            "state was called with a key of {length} bytes, must be 1 to {KEY_LIMIT}"
        )));
    }
    Ok(())
}

fn own_key(cx: &Cx<'_>, key: &WasmStr) -> Result<Arc<str>> {
    let key = key.to_str(cx)?;
    check_key(&key)?;
    Ok(awake(cx.data())?.known_key(&key).unwrap_or_else(|| Arc::from(&*key)))
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(PANIC_LIMIT)].to_owned()
}
