//! The macros of `ostraca-sdk`, which documents them.

mod application_error;
mod entity;
mod method;
mod migration;
mod reference;
mod schema;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Turns an inherent `impl` block into an entity.
///
/// `#[message]` marks the methods that messages can call, and `#[timer]` those that handle timers; `#[start]` and
/// `#[stop]` mark the hooks, and `#[migrate(schema = 1)]` the function that migrates older state. By default the whole
/// struct is the state. `#[entity(state = "keys")]` is for an empty struct whose methods use `ostraca_sdk::state`.
/// `type = "…"` also generates a typed reference to entities of that type (`ostraca_sdk::call`), `export = false` leaves
/// the component to another crate, and `schemas = false` leaves out the JSON Schemas. Other functions in the block remain
/// unchanged.
#[proc_macro_attribute]
pub fn entity(arguments: TokenStream, item: TokenStream) -> TokenStream {
    entity::expand(arguments.into(), item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Implements `ApplicationError` for an enum that implements `Display`.
///
/// A variant's code is its name in kebab case, or the code in its attribute `#[code("…")]`. The message is the output
/// of `Display`. Also implements `From` for converting the enum into `ostraca_sdk::Error`.
#[proc_macro_derive(ApplicationError, attributes(code))]
pub fn application_error(item: TokenStream) -> TokenStream {
    application_error::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
