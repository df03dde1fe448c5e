//! The import `ostraca:entity/asks`.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use wasmtime::StoreContextMut;
use wasmtime::component::{
    ComponentType, Linker, Lower, Resource, ResourceType, WasmList, WasmStr,
};

use crate::asks::{AskAnswer, GuestAsk, PendingAsk};
use crate::instance_data::InstanceData;
use crate::tell_imports::{GuestEntity, read_message};
use crate::trap::HostTrap;

type Cx<'a> = StoreContextMut<'a, InstanceData>;

/// The WIT's `application-error`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitApplicationError {
    code: String,
    message: String,
}

/// The WIT's `failure`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitFailure {
    code: String,
    message: String,
}

/// The WIT's `ask-error`.
#[derive(ComponentType, Lower)]
#[component(variant)]
enum WitAskError {
    #[component(name = "application")]
    Application(WitApplicationError),
    #[component(name = "not-run")]
    NotRun(WitFailure),
    #[component(name = "unknown")]
    Unknown(String),
}

type WitAnswer = Result<Vec<u8>, WitAskError>;

fn wit_answer(answer: AskAnswer) -> WitAnswer {
    Err(match answer {
        AskAnswer::Result(body) => return Ok(body.into()),
        AskAnswer::Application { code, message } => {
            WitAskError::Application(WitApplicationError { code, message })
        }
        AskAnswer::NotRun { code, message } => WitAskError::NotRun(WitFailure { code, message }),
        AskAnswer::Unknown { message } => WitAskError::Unknown(message),
    })
}

/// The parameters of `start-ask`.
type Passed = (GuestEntity, WasmStr, WasmList<u8>, WasmStr, Option<u64>);

pub(crate) fn link(linker: &mut Linker<InstanceData>) -> wasmtime::Result<()> {
    let mut asks = linker.instance("ostraca:entity/asks@0.1.0")?;
    asks.resource("pending-ask", ResourceType::host::<PendingAsk>(), |mut cx, handle| {
        cx.data_mut().asks.forget(handle);
        Ok(())
    })?;
    asks.func_wrap("start-ask", |mut cx: Cx<'_>, passed: Passed| {
        let (target, method, body, content_type, timeout) = passed;
        let limits = cx.data().limits.clone();
        let entity_type = target.entity_type.to_str(&cx)?.into_owned();
        if !limits.ask.contains(&entity_type) {
            return Err(HostTrap::AskNotGranted(entity_type).into());
        }
        cx.data().asks.check_allowed()?;
        // Checked before copying, since the body may be as large as the guest's memory.
        let would = body.len() as u64;
        if would > limits.ask_bytes {
            return Err(HostTrap::AsksTooLarge { would, limit: limits.ask_bytes }.into());
        }
        let message = read_message(&cx, "asks", &(target, method, body, content_type))?;
        let timeout = timeout.map_or(limits.ask_timeout, |timeout| {
            Duration::from_millis(timeout).min(limits.ask_timeout)
        });
        let ask = GuestAsk {
            entity_type: message.entity_type,
            id: message.id,
            method: message.method,
            body: message.body,
            content_type: message.content_type,
            timeout,
        };
        let entity = cx.data_mut();
        let handle = entity.asks.start(entity.places, ask, &limits)?;
        entity.places += 1;
        Ok((Resource::<PendingAsk>::new_own(handle),))
    })?;
    asks.func_wrap_async(
        "[method]pending-ask.wait",
        |mut cx: Cx<'_>, (ask,): (Resource<PendingAsk>,)| {
            Box::new(async move {
                let (_, answer) = wait_any(&mut cx, &[ask.rep()]).await?;
                Ok((wit_answer(answer),))
            })
        },
    )?;
    asks.func_wrap_async("wait-any", |mut cx: Cx<'_>, (asks,): (Vec<Resource<PendingAsk>>,)| {
        Box::new(async move {
            if asks.is_empty() {
                let why = "asks.wait-any was called without a pending ask";
                return Err(HostTrap::InvalidHostCall(why.into()).into());
            }
            let handles: Vec<_> = asks.iter().map(Resource::rep).collect();
            let (at, _) = wait_any(&mut cx, &handles).await?;
            Ok((at,))
        })
    })?;
    Ok(())
}

/// Waits until at least one of the asks is answered. Returns the lowest position of an answered ask, and its answer.
/// The time spent waiting is not charged to the guest.
async fn wait_any(cx: &mut Cx<'_>, handles: &[u32]) -> Result<(u32, AskAnswer), HostTrap> {
    cx.data().meter.enter_host();
    let limits = cx.data().limits.clone();
    let answered = poll_fn(|context| {
        for (at, handle) in (0..).zip(handles) {
            let polled = cx.data_mut().asks.poll(*handle, &limits, context);
            if let Poll::Ready(answer) = polled {
                return Poll::Ready(answer.map(|answer| (at, answer)));
            }
        }
        Poll::Pending
    })
    .await;
    cx.data().meter.leave_host();
    answered
}
