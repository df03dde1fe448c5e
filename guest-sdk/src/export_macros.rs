//! The macros that turn a type into the component's exports. They are available at the root of the crate.

/// Exports a type that implements [`raw::Handler`](crate::raw::Handler) as the component. Has no effect on targets
/// other than wasm.
#[macro_export]
macro_rules! export {
    ($handler:ty) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exports = $crate::adapter::Adapter<$handler>;
            $crate::bindings::entity::export_entity!(Exports with_types_in $crate::bindings::entity);
        };
    };
}

/// Like [`export!`](crate::export), and also exports the stop hook.
#[macro_export]
macro_rules! export_with_stop {
    ($handler:ty) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exports = $crate::adapter::Adapter<$handler>;
            $crate::bindings::entity::export_entity!(Exports with_types_in $crate::bindings::entity);
            $crate::bindings::stop::export_stop!(Exports with_types_in $crate::bindings::stop);
        };
    };
}

/// Exports a type that implements [`raw::Migration`](crate::raw::Migration). Used in addition to
/// [`export!`](crate::export) or [`export_with_stop!`](crate::export_with_stop).
#[macro_export]
macro_rules! export_migration {
    ($handler:ty) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exports = $crate::adapter::Adapter<$handler>;
            $crate::bindings::migration::export_migration!(Exports with_types_in $crate::bindings::migration);
        };
    };
}

/// Exports a type that implements [`raw::SchemaProvider`](crate::raw::SchemaProvider). Used in addition to
/// [`export!`](crate::export) or [`export_with_stop!`](crate::export_with_stop).
#[macro_export]
macro_rules! export_schemas {
    ($handler:ty) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exports = $crate::adapter::Adapter<$handler>;
            $crate::bindings::schemas::export_method_schemas!(Exports with_types_in $crate::bindings::schemas);
        };
    };
}

/// Exports a type that implements [`raw::TimerHandler`](crate::raw::TimerHandler). Used in addition to
/// [`export!`](crate::export) or [`export_with_stop!`](crate::export_with_stop).
#[macro_export]
macro_rules! export_timer_handler {
    ($handler:ty) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exports = $crate::adapter::Adapter<$handler>;
    $crate::bindings::timer::export_timer!(Exports with_types_in $crate::bindings::timer);
        };
    };
}
