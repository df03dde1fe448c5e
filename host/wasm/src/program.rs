//! A compiled component, checked and ready to be instantiated.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use wasmtime::component::{Component, InstancePre, TypedFunc};
use wasmtime::{PoolConcurrencyLimitError, Store, UpdateDeadline};

use crate::calls::TurnCalls;
use crate::cancel::{CancelToken, cancelled};
use crate::channels::TurnChannels;
use crate::digest::ComponentDigest;
use crate::engine::EngineContext;
use crate::host_trap::{Stage, explain};
use crate::instance_data::InstanceData;
use crate::journal::TurnJournal;
use crate::log::GuestLog;
use crate::message_export::MessageFunc;
use crate::meter::{Meter, metered};
use crate::method_schema::SchemasFunc;
use crate::migration::{self, SchemaSupport};
use crate::shared::Shared;
use crate::tells::TurnTells;
use crate::text::{is_control, sanitized};
use crate::timer_imports::TimerFunc;
use crate::timers::TurnTimers;
use crate::turn_values::TurnSource;
use crate::variables::TurnVariables;
use crate::world::{Exports, METHODS_BYTES};
use crate::{
    EntityIdentity, Error, Failure, InstanceLimits, InstanceSpec, Method, NoState, StartReason,
    StopReason, TurnRecords, TurnValues,
};

/// Maximum number of methods of a component.
const METHODS: usize = 1_000;
/// Maximum length of a method's name, in bytes.
const METHOD_NAME: usize = 128;
/// The part of a [`Program`] that does not depend on a deployment's limits. All programs of one component share it.
pub(crate) struct CompiledComponent {
    pre: InstancePre<InstanceData>,
    pub(crate) exports: Exports,
    methods: Vec<Method>,
    schema: SchemaSupport,
    digest: ComponentDigest,
}

/// A component with the limits of one deployment. Instances keep it alive.
pub struct Program {
    pub(crate) shared: Arc<Shared>,
    pub(crate) compiled: Arc<CompiledComponent>,
    pub(crate) limits: Arc<InstanceLimits>,
}

impl CompiledComponent {
    pub(crate) fn new(
        shared: &Shared,
        context: &EngineContext,
        component: &Component,
        exports: Exports,
        digest: ComponentDigest,
        limits: &Arc<InstanceLimits>,
        cancel: &CancelToken,
    ) -> Result<CompiledComponent, Error> {
        let linker = if exports.wasi { &context.wasi } else { &context.plain };
        let pre = linker.instantiate_pre(component).map_err(wrong_signature)?;
        let mut compiled = CompiledComponent {
            pre,
            exports,
            methods: Vec::new(),
            schema: SchemaSupport::default(),
            digest,
        };
        let reading = async {
            let permit = shared.readers.acquire().await;
            let _permit = permit.map_err(|error| Error::ThreadFailed(error.to_string()))?;
            compiled.read_methods(shared, limits).await
        };
        (compiled.methods, compiled.schema) = cancel.block_on(reading).ok_or_else(cancelled)??;
        Ok(compiled)
    }

    /// Instantiates the component once, without an identity or effects, and reads its methods and schemas. Also checks
    /// the types of the exports.
    async fn read_methods(
        &self,
        shared: &Shared,
        limits: &Arc<InstanceLimits>,
    ) -> Result<(Vec<Method>, SchemaSupport), Error> {
        let bad = |failure: Failure| Error::InvalidMethods(failure.message);
        let (mut store, instance) =
            self.instantiate_nobody(shared, limits).await.map_err(|error| match error {
                Error::Activation(failure) => bad(failure),
                error => error,
            })?;
        let exports = &self.exports;
        let methods: TypedFunc<(), (Vec<Method>,)> =
            instance.get_typed_func(&mut store, exports.methods).map_err(wrong_signature)?;
        let _: TypedFunc<(StartReason,), (Result<(), String>,)> =
            instance.get_typed_func(&mut store, exports.start).map_err(wrong_signature)?;
        let _: MessageFunc<'_> =
            instance.get_typed_func(&mut store, exports.message).map_err(wrong_signature)?;
        if let Some(stop) = exports.stop {
            let _: TypedFunc<(StopReason,), ()> =
                instance.get_typed_func(&mut store, stop).map_err(wrong_signature)?;
        }
        if let Some(timer) = exports.timer {
            let _: TimerFunc =
                instance.get_typed_func(&mut store, timer).map_err(wrong_signature)?;
        }
        if let Some(schemas) = exports.schemas {
            let _: SchemasFunc =
                instance.get_typed_func(&mut store, schemas).map_err(wrong_signature)?;
        }
        store.set_hostcall_fuel(METHODS_BYTES);
        let meter = store.data().meter.clone();
        let called =
            metered(&meter, &shared.ticker.sleepers, pin!(methods.call_async(&mut store, ())))
                .await;
        let methods = match called {
            Ok(Ok((methods,))) => check_methods(methods)?,
            Ok(Err(error)) => {
                return Err(bad(explain(&error, Stage::Methods, store.data_mut())));
            }
            Err(fault) => return Err(bad(fault.to_failure(Stage::Methods, limits))),
        };
        let Some(exports) = &self.exports.migration else {
            return Ok((methods, SchemaSupport::default()));
        };
        let functions =
            migration::schema_functions(&mut store, &instance, exports).map_err(wrong_signature)?;
        let bad = |failure: Failure| Error::InvalidSchemaVersion(failure.message);
        let mut read = [0; 2];
        for (schema, function) in read.iter_mut().zip([functions.0, functions.1]) {
            let called = {
                let call = pin!(function.call_async(&mut store, ()));
                metered(&meter, &shared.ticker.sleepers, call).await
            };
            match called {
                Ok(Ok((it,))) => *schema = it,
                Ok(Err(error)) => {
                    return Err(bad(explain(&error, Stage::Schemas, store.data_mut())));
                }
                Err(fault) => return Err(bad(fault.to_failure(Stage::Schemas, limits))),
            }
        }
        Ok((methods, migration::check(read[0], read[1])?))
    }

    /// Creates an instance without an identity, to read what the component describes.
    pub(crate) async fn instantiate_nobody(
        &self,
        shared: &Shared,
        limits: &Arc<InstanceLimits>,
    ) -> Result<(Store<InstanceData>, wasmtime::component::Instance), Error> {
        let nobody = EntityIdentity {
            namespace: "".into(),
            entity_type: "".into(),
            id: "".into(),
            revision: 0,
        };
        let spec = InstanceSpec {
            identity: nobody,
            state: Box::new(NoState),
            values: TurnValues::default(),
            records: TurnRecords::default(),
        };
        self.instantiate(shared, limits, spec).await
    }

    /// The methods that the component lists.
    pub(crate) fn methods(&self) -> &[Method] {
        &self.methods
    }

    pub(crate) async fn instantiate(
        &self,
        shared: &Shared,
        limits: &Arc<InstanceLimits>,
        spec: InstanceSpec,
    ) -> Result<(Store<InstanceData>, wasmtime::component::Instance), Error> {
        let meter = Meter::new(shared.tick);
        meter.begin(limits.activation_time);
        let InstanceSpec { identity, state, values, records } = spec;
        let log = Arc::new(GuestLog::new(identity, limits));
        let mut store = Store::new(
            self.pre.engine(),
            InstanceData::new(
                limits.clone(),
                meter.clone(),
                log,
                state,
                TurnSource::new(values),
                TurnVariables::new(shared.variables.clone()),
                TurnTimers::begin(records.timers),
                TurnTells::begin(records.outbox),
                TurnJournal::begin(records.journal),
                TurnChannels::begin(records.channels),
                TurnCalls::new(shared.http.clone(), meter.clone()),
                self.exports.timer.is_some(),
            ),
        );
        store.data_mut().remembered = records.remembered;
        store.data_mut().has_subscribers = records.has_subscribers;
        store.data_mut().expires_at = records.expires_at;
        store.limiter(|entity| entity);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|cx| {
            cx.data().meter.tick()?;
            Ok(UpdateDeadline::Yield(1))
        });
        store.set_hostcall_fuel(limits.hostcall_fuel());
        let made =
            metered(&meter, &shared.ticker.sleepers, pin!(self.pre.instantiate_async(&mut store)))
                .await;
        match made {
            Ok(Ok(instance)) => Ok((store, instance)),
            Ok(Err(error)) if error.is::<PoolConcurrencyLimitError>() => {
                Err(Error::InstanceLimit { limit: shared.max_live })
            }
            Ok(Err(error)) => {
                Err(Error::Activation(explain(&error, Stage::Instantiate, store.data_mut())))
            }
            Err(fault) => Err(Error::Activation(fault.to_failure(Stage::Instantiate, limits))),
        }
    }
}

impl Program {
    pub(crate) fn new(
        shared: Arc<Shared>,
        compiled: Arc<CompiledComponent>,
        limits: Arc<InstanceLimits>,
    ) -> Program {
        Program { shared, compiled, limits }
    }

    /// The methods that the component lists.
    pub fn methods(&self) -> &[Method] {
        self.compiled.methods()
    }

    /// What the component says about the schema of its state.
    pub fn schema(&self) -> SchemaSupport {
        self.compiled.schema
    }

    /// Whether the component exports the stop hook.
    pub fn has_stop_hook(&self) -> bool {
        self.compiled.exports.stop.is_some()
    }

    /// Whether the component exports a timer handler.
    pub fn has_timer_handler(&self) -> bool {
        self.compiled.exports.timer.is_some()
    }

    /// The component's content hash.
    pub fn digest(&self) -> ComponentDigest {
        self.compiled.digest
    }

    /// The limits of each of its instances.
    pub fn limits(&self) -> &InstanceLimits {
        &self.limits
    }
}

pub(crate) fn wrong_signature(error: wasmtime::Error) -> Error {
    Error::WrongSignature(sanitized(format!("{error:#}")))
}

fn check_methods(methods: Vec<Method>) -> Result<Vec<Method>, Error> {
    if methods.len() > METHODS {
        return Err(Error::InvalidMethods(format!(
            "{} methods, limit is {METHODS}",
            methods.len()
        )));
    }
    let mut names = HashSet::new();
    for Method { name, .. } in &methods {
        if name.is_empty() || name.len() > METHOD_NAME {
            return Err(Error::InvalidMethods(format!(
                "a method name is {} bytes, must be 1 to {METHOD_NAME}",
                name.len()
            )));
        }
        if name.chars().any(is_control) {
            return Err(Error::InvalidMethods(format!(
                "the method name {name:?} contains a control character"
            )));
        }
        if !names.insert(name.as_str()) {
            return Err(Error::InvalidMethods(format!("{name:?} is listed twice")));
        }
    }
    drop(names);
    Ok(methods)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MessageKind;

    fn method(name: &str) -> Method {
        Method { name: name.into(), kind: MessageKind::Query, summary: String::new() }
    }

    #[test]
    fn an_invalid_method_list_is_refused_with_the_reason() {
        let refused = |methods| check_methods(methods).unwrap_err().to_string();
        assert!(refused(vec![method("")]).contains("0 bytes"));
        assert!(refused(vec![method(&"m".repeat(129))]).contains("129 bytes"));
        for name in ["a\nb", "\u{1b}[2J", "a\u{202e}b", "a\0"] {
            let refused = refused(vec![method(name)]);
            assert!(refused.contains("control character") && !refused.contains(name), "{refused}");
        }
        assert!(
            refused(vec![method("add"), method("get"), method("add")])
                .contains("\"add\" is listed twice")
        );
        let many =
            |count: usize| (0..count).map(|number| method(&number.to_string())).collect::<Vec<_>>();
        assert!(refused(many(1_001)).contains("1001"));
        assert_eq!(check_methods(many(1_000)).unwrap().len(), 1_000);
        assert_eq!(check_methods(vec![method(&"m".repeat(128))]).unwrap().len(), 1);
    }
}
