//! The macros of `ostraca-sdk`; documented there.

mod application_error;
mod entity;
mod method;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Makes an entity of an inherent `impl` block.
///
/// `#[message]` marks the methods that messages may call, `#[start]` and `#[stop]` the hooks. `#[entity(state = "keys")]`
/// is for an empty struct whose methods use `ostraca_sdk::state`; without it the whole struct is the state. Other
/// functions of the block stay what they are.
#[proc_macro_attribute]
pub fn entity(arguments: TokenStream, item: TokenStream) -> TokenStream {
    entity::expand(arguments.into(), item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Implements `ApplicationError` for an enum that implements `Display`.
///
/// A variant's code is its name in kebab case, or what `#[code("…")]` on it says; the message is what `Display` shows.
/// Also implements `From` the enum for `ostraca_sdk::Error`.
#[proc_macro_derive(ApplicationError, attributes(code))]
pub fn application_error(item: TokenStream) -> TokenStream {
    application_error::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
