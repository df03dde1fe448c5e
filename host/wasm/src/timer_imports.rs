//! The imports and the export that concern timers: `ostraca:entity/timers` and `timer-handler`.

use std::sync::Arc;

use bytes::Bytes;
use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentType, Lift, Linker, Lower, TypedFunc, WasmList, WasmStr};

use crate::guest_text::plain_text;
use crate::instance_data::InstanceData;
use crate::message_export::ApplicationError;
use crate::timers::{GuestTimer, LATEST, NAME_LIMIT, TimerFiring};
use crate::trap::HostTrap;

type Cx<'a> = StoreContextMut<'a, InstanceData>;

/// The WIT's `time`.
#[derive(ComponentType, Lift)]
#[component(variant)]
enum WitTime {
    #[component(name = "at")]
    At(u64),
    #[component(name = "after")]
    After(u64),
}

/// The WIT's `timer`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitTimer {
    name: Arc<str>,
    due: u64,
    interval: Option<u64>,
    payload: Arc<[u8]>,
    attempts: u32,
    failure: Option<Arc<str>>,
    #[component(name = "set-aside")]
    set_aside: bool,
}

impl From<GuestTimer> for WitTimer {
    fn from(timer: GuestTimer) -> Self {
        WitTimer {
            name: timer.name,
            due: timer.due,
            interval: (timer.interval > 0).then_some(timer.interval),
            payload: Arc::from(&timer.payload[..]),
            attempts: timer.attempts,
            failure: (!timer.failure.is_empty()).then_some(timer.failure),
            set_aside: timer.set_aside,
        }
    }
}

/// The WIT's `firing`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct WitFiring {
    name: Arc<str>,
    payload: Arc<[u8]>,
    due: u64,
    missed: u64,
    attempt: u32,
}

impl From<&TimerFiring> for WitFiring {
    fn from(firing: &TimerFiring) -> Self {
        WitFiring {
            name: firing.name.clone(),
            payload: Arc::from(&firing.payload[..]),
            due: firing.due,
            missed: firing.missed,
            attempt: firing.attempt,
        }
    }
}

/// The result of the export `timer`.
pub(crate) type TimerResult = Result<(), ApplicationError>;
/// The type of the export `timer`.
pub(crate) type TimerFunc = TypedFunc<(WitFiring,), (TimerResult,)>;

pub(crate) fn link(linker: &mut Linker<InstanceData>) -> wasmtime::Result<()> {
    let mut timers = linker.instance("ostraca:entity/timers@0.1.0")?;
    timers.func_wrap(
        "set",
        |mut cx: Cx<'_>,
         (name, time, interval, payload): (WasmStr, WitTime, Option<u64>, WasmList<u8>)| {
            cx.data().may_write("a timer was set")?;
            if !cx.data().handles_timers {
                return Err(HostTrap::NoTimerHandler.into());
            }
            let name = own_name(&cx, &name)?;
            if interval == Some(0) {
                return Err(HostTrap::InvalidHostCall(
                    "timers.set was called with interval 0: leave it out for a timer that fires once".into(),
                )
                .into());
            }
            let limits = cx.data().limits.clone();
            // Checked before copying, since the payload may be as large as the guest's memory.
            let would = (name.len() + payload.len()) as u64;
            if would > limits.timer_bytes {
                return Err(HostTrap::TimersTooLarge { would, limit: limits.timer_bytes }.into());
            }
            let due = match time {
                WitTime::At(at) => at,
                WitTime::After(delay) => cx.data().turn.utc_ms().saturating_add(delay),
            };
            let payload = Bytes::copy_from_slice(payload.as_le_slice(&cx));
            let interval = interval.unwrap_or(0).min(LATEST);
            cx.data_mut().timers.set(&name, due, interval, payload, &limits)?;
            Ok(())
        },
    )?;
    timers.func_wrap("cancel", |mut cx: Cx<'_>, (name,): (WasmStr,)| {
        cx.data().may_write("a timer was cancelled")?;
        let name = own_name(&cx, &name)?;
        let limits = cx.data().limits.clone();
        Ok((cx.data_mut().timers.cancel(&name, &limits)?,))
    })?;
    timers.func_wrap("list", |mut cx: Cx<'_>, (): ()| {
        let timers = cx.data_mut().timers.list();
        Ok((timers.into_iter().map(WitTimer::from).collect::<Vec<_>>(),))
    })?;
    Ok(())
}

fn own_name(cx: &Cx<'_>, name: &WasmStr) -> wasmtime::Result<String> {
    plain_text(cx, name, "timers was called with a name", 1..=NAME_LIMIT)
}
