//! The trait that `#[entity]` implements, and the code that runs an instance's turns.
//!
//! The macro generates little more than a table of methods. [`Runner`] dispatches from that table, in a component and
//! in [`testing`](crate::testing) alike. A [`StateModel`] says how the struct is stored.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arguments::{Arguments, Parameter};
use crate::context::MessageKind;
use crate::journal::{self, EventSourced, JournalExtent};
use crate::raw::{self, MessageError, StartReason, StopReason};
use crate::schema::SchemaRow;
use crate::state;
use crate::timers::{self, Firing};

/// The key under which the whole struct is stored.
pub const WHOLE_STATE_KEY: &str = "state";

/// An entity. Implemented by the attribute `#[entity]`, never by hand.
pub trait Entity: Sized + 'static {
    #[doc(hidden)]
    type StateModel: StateModel<Self>;
    #[doc(hidden)]
    const METHODS: &'static [Method<Self>];
    #[doc(hidden)]
    const START: Option<StartHook<Self>>;
    #[doc(hidden)]
    const STOP: Option<StopHook<Self>>;
    #[doc(hidden)]
    const MIGRATE: Option<MigrateHook>;
    #[doc(hidden)]
    const TIMERS: &'static [TimerMethod<Self>];
    #[doc(hidden)]
    const SCHEMAS: &'static [SchemaRow];
}

/// The hook `#[start]`.
#[doc(hidden)]
pub type StartHook<E> = fn(&mut E, StartReason) -> Result<(), String>;

/// The hook `#[stop]`.
#[doc(hidden)]
pub type StopHook<E> = fn(&mut E, StopReason);

/// The function marked `#[migrate]`, and its options.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct MigrateHook {
    pub schema: u32,
    pub newest: u32,
    pub call: fn(u32) -> Result<(), String>,
}

/// A method that handles timers.
#[doc(hidden)]
#[derive(Debug)]
pub struct TimerMethod<E> {
    /// The method handles timers with this name, and timers whose name is this one followed by `/` and more.
    pub name: &'static str,
    pub call: fn(&mut E, &[u8]) -> Result<Vec<u8>, MessageError>,
}

impl<E> TimerMethod<E> {
    fn handles(&self, timer: &str) -> bool {
        let rest = timer.strip_prefix(self.name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Decodes the payload that a method marked `#[timer]` takes.
#[doc(hidden)]
pub fn timer_payload<T: DeserializeOwned>(payload: &[u8]) -> Result<T, MessageError> {
    let decoded = timers::decode(payload);
    decoded.map_err(|error| MessageError::InvalidArguments(format!("the payload: {error}")))
}

/// A row of an entity's method table.
#[doc(hidden)]
#[derive(Debug)]
pub struct Method<E> {
    pub name: &'static str,
    pub kind: MessageKind,
    pub summary: &'static str,
    /// Shown in errors: `add(by: u64)`.
    pub signature: &'static str,
    pub parameters: &'static [Parameter],
    /// Whether the method reads the body itself.
    pub raw: bool,
    pub call: fn(&mut E, &Arguments<'_>) -> Result<Vec<u8>, MessageError>,
}

/// How an entity's struct is stored.
#[doc(hidden)]
pub trait StateModel<E> {
    /// The stored value, as this instance last read or wrote it.
    type Stored;

    /// Reads the stored value.
    fn load() -> Self::Stored;

    /// Builds the struct from the stored value `kept`.
    fn decode(kept: &Self::Stored) -> E;

    /// Stores the struct and updates `kept`, if the two differ.
    fn save(entity: &E, kept: &mut Self::Stored);

    /// Gives the struct its value from the beginning of the turn, which has failed. `false` if it must be loaded again
    /// in the next turn.
    fn restore(entity: &mut E, kept: &Self::Stored) -> bool {
        *entity = Self::decode(kept);
        true
    }
}

/// The whole struct is one value, under [`WHOLE_STATE_KEY`].
#[doc(hidden)]
#[derive(Debug)]
pub struct WholeState;

impl<E: Serialize + DeserializeOwned + Default> StateModel<E> for WholeState {
    type Stored = Option<Vec<u8>>;

    fn load() -> Self::Stored {
        state::get_raw(WHOLE_STATE_KEY)
    }

    fn decode(kept: &Self::Stored) -> E {
        let Some(bytes) = kept else { return E::default() };
        match state::from_json(bytes) {
            Ok(entity) => entity,
            Err(error) => panic!(
                "state-does-not-decode: the stored state does not fit the struct `{}`: {error}; give new fields \
                 #[serde(default)], keep old names with #[serde(alias = \"…\")], and deploy again; nothing was changed",
                std::any::type_name::<E>()
            ),
        }
    }

    fn save(entity: &E, kept: &mut Self::Stored) {
        let bytes = match state::to_json(entity) {
            Ok(bytes) => bytes,
            Err(error) => does_not_encode::<E>(&error),
        };
        if kept.as_ref() == Some(&bytes) {
            return;
        }
        // If such a value were stored, no message could repair it, because the entity would not even start.
        if let Err(error) = state::from_json::<E>(&bytes) {
            does_not_encode::<E>(&format!(
                "it cannot be decoded from its own JSON: {error} (fields that are skipped when it is written need \
                 #[serde(default)])"
            ));
        }
        state::set_raw(WHOLE_STATE_KEY, &bytes);
        *kept = Some(bytes);
    }
}

#[cold]
fn does_not_encode<E>(why: &str) -> ! {
    panic!(
        "state-does-not-encode: the struct `{}` cannot be stored: {why}; nothing was changed",
        std::any::type_name::<E>()
    )
}

/// The struct is empty, and its methods use [`state`].
#[doc(hidden)]
#[derive(Debug)]
pub struct KeyedState;

impl<E: Default> StateModel<E> for KeyedState {
    type Stored = ();

    fn load() {}

    fn decode((): &()) -> E {
        E::default()
    }

    fn save(_: &E, (): &mut ()) {}
}

/// The struct is built from the events of the journal: see [`EventSourced`].
#[doc(hidden)]
#[derive(Debug)]
pub struct EventState;

impl<E: EventSourced> StateModel<E> for EventState {
    /// The journal after the last turn.
    type Stored = JournalExtent;

    fn load() -> Self::Stored {
        journal::extent()
    }

    fn decode(kept: &Self::Stored) -> E {
        journal::replay(kept.next)
    }

    fn save(entity: &E, kept: &mut Self::Stored) {
        *kept = journal::extent();
        let since = kept.next - kept.snapshot.unwrap_or(0);
        if E::SNAPSHOT_EVERY > 0 && since > E::SNAPSHOT_EVERY {
            journal::take_snapshot(entity, kept.next);
            *kept = journal::extent();
        }
        // A change that is in no event would be lost with the instance. Checked in tests only, since it reads all
        // events.
        #[cfg(not(target_family = "wasm"))]
        journal::check_replay(entity, kept.next);
    }

    fn restore(_: &mut E, kept: &Self::Stored) -> bool {
        // Only events change the struct. The turn still sees its own changes to the journal, so the struct cannot be
        // built again before the turn has ended.
        journal::extent() == *kept
    }
}

/// One instance of an entity.
#[doc(hidden)]
pub struct Runner<E: Entity> {
    loaded: Option<Loaded<E>>,
}

struct Loaded<E: Entity> {
    entity: E,
    kept: <E::StateModel as StateModel<E>>::Stored,
}

impl<E: Entity> Default for Runner<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Entity> Runner<E> {
    /// Creates an instance that has loaded nothing yet.
    pub const fn new() -> Self {
        Self { loaded: None }
    }

    /// Lists the entity's methods.
    pub fn methods() -> Vec<raw::Method> {
        E::METHODS
            .iter()
            .map(|method| raw::Method {
                name: method.name.to_owned(),
                kind: method.kind,
                summary: method.summary.to_owned(),
            })
            .collect()
    }

    /// Runs the start hook as a turn. Loads nothing if there is no hook.
    pub fn start(&mut self, reason: StartReason) -> Result<(), String> {
        let Some(start) = E::START else { return Ok(()) };
        let outcome = start(&mut self.loaded().entity, reason);
        self.end(outcome.is_ok());
        outcome
    }

    /// The schema of the state, and the highest one from which it can be migrated.
    pub fn schemas() -> (u32, u32) {
        E::MIGRATE.map_or((0, 0), |hook| (hook.schema, hook.newest))
    }

    /// Migrates the stored state as a turn.
    pub fn migrate(from_schema: u32) -> Result<(), String> {
        match E::MIGRATE {
            Some(hook) => (hook.call)(from_schema),
            None => Err("the entity has no function with #[migrate]".to_owned()),
        }
    }

    /// Runs one message as a turn.
    pub fn message(&mut self, method: &str, body: &[u8]) -> Result<Vec<u8>, MessageError> {
        let Some(method) = E::METHODS.iter().find(|row| row.name == method) else {
            return Err(MessageError::UnknownMethod);
        };
        let arguments = match method.raw {
            true => Arguments::raw(method.signature, body),
            false => Arguments::split(method.signature, method.parameters, body)?,
        };
        let outcome = (method.call)(&mut self.loaded().entity, &arguments);
        match (method.kind, &outcome) {
            // The method was not called, or cannot have changed the struct.
            (_, Err(MessageError::InvalidArguments(_))) | (MessageKind::Query, _) => {}
            (MessageKind::Command, outcome) => self.end(outcome.is_ok()),
        }
        outcome
    }

    /// Runs a timer's firing as a turn.
    pub fn timer(&mut self, firing: &Firing) -> Result<(), (String, String)> {
        let Some(method) = E::TIMERS.iter().find(|row| row.handles(&firing.name)) else {
            let text = format!("no method with #[timer] handles `{}`", firing.name);
            return Err(("unknown-timer".to_owned(), text));
        };
        let entity = &mut self.loaded().entity;
        let outcome = timers::during(firing, || (method.call)(entity, &firing.payload));
        self.end(outcome.is_ok());
        match outcome {
            Ok(_) => Ok(()),
            Err(MessageError::Application { code, message }) => Err((code, message)),
            Err(MessageError::InvalidArguments(why)) => Err(("invalid-payload".to_owned(), why)),
            Err(MessageError::UnknownMethod) => Err(("unknown-timer".to_owned(), String::new())),
        }
    }

    /// Runs the stop hook as a turn. Loads nothing if there is no hook.
    pub fn stop(&mut self, reason: StopReason) {
        let Some(stop) = E::STOP else { return };
        stop(&mut self.loaded().entity, reason);
        self.end(true);
    }

    fn end(&mut self, succeeded: bool) {
        self.loaded.take_if(|loaded| !loaded.end(succeeded));
    }

    fn loaded(&mut self) -> &mut Loaded<E> {
        self.loaded.get_or_insert_with(|| {
            let kept = E::StateModel::load();
            Loaded { entity: E::StateModel::decode(&kept), kept }
        })
    }
}

impl<E: Entity> Loaded<E> {
    /// Saves the struct, or restores its value from the beginning of the turn (R21). `false` if it must be loaded
    /// again.
    fn end(&mut self, succeeded: bool) -> bool {
        if succeeded {
            E::StateModel::save(&self.entity, &mut self.kept);
        } else {
            return E::StateModel::restore(&mut self.entity, &self.kept);
        }
        true
    }
}

/// Creates the component's only instance of the entity, and exports it.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_entity {
    ($entity:ty $(, $export:ident)+) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            ::std::thread_local! {
                static INSTANCE: ::std::cell::RefCell<$crate::__private::Runner<$entity>> =
                    const { ::std::cell::RefCell::new($crate::__private::Runner::new()) };
            }

            struct Instance;

            impl $crate::raw::Handler for Instance {
                fn methods() -> ::std::vec::Vec<$crate::raw::Method> {
                    $crate::__private::Runner::<$entity>::methods()
                }

                fn start(reason: $crate::StartReason) -> Result<(), ::std::string::String> {
                    INSTANCE.with_borrow_mut(|instance| instance.start(reason))
                }

                fn message(
                    method: ::std::string::String,
                    body: ::std::vec::Vec<u8>,
                ) -> Result<::std::vec::Vec<u8>, $crate::raw::MessageError> {
                    INSTANCE.with_borrow_mut(|instance| instance.message(&method, &body))
                }

                fn stop(reason: $crate::StopReason) {
                    INSTANCE.with_borrow_mut(|instance| instance.stop(reason));
                }
            }

            impl $crate::raw::Migration for Instance {
                fn schema_version() -> u32 {
                    $crate::__private::Runner::<$entity>::schemas().0
                }

                fn newest_schema() -> u32 {
                    $crate::__private::Runner::<$entity>::schemas().1
                }

                fn migrate(from_schema: u32) -> Result<(), ::std::string::String> {
                    $crate::__private::Runner::<$entity>::migrate(from_schema)
                }
            }

            impl $crate::raw::TimerHandler for Instance {
                fn timer(
                    firing: $crate::raw::Firing,
                ) -> Result<(), (::std::string::String, ::std::string::String)> {
                    INSTANCE.with_borrow_mut(|instance| instance.timer(&firing))
                }
            }

            impl $crate::raw::SchemaProvider for Instance {
                fn schemas() -> ::std::vec::Vec<$crate::raw::MethodSchema> {
                    $crate::__private::schemas::<$entity>()
                }
            }

            $($crate::$export!(Instance);)+
        };
    };
}
