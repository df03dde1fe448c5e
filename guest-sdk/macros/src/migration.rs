//! Expands `#[migrate]`: its options, and the function that migrates an entity.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, Error, ImplItemFn, LitInt, Result};

use crate::method::{check, here, typed};

/// The options of `#[migrate]`.
pub(crate) struct Schemas {
    pub(crate) schema: LitInt,
    /// The same as `schema` if it is left out.
    pub(crate) newest: LitInt,
}

/// Reads the options of `#[migrate]`.
pub(crate) fn schemas(attribute: &Attribute) -> Result<Schemas> {
    let (mut schema, mut newest) = (None, None);
    let read = |meta: ParseNestedMeta<'_>| {
        let into = match meta.path.get_ident().map(ToString::to_string).as_deref() {
            Some("schema") => &mut schema,
            Some("newest") => &mut newest,
            _ => return Err(meta.error("unknown option; #[migrate] has schema and newest")),
        };
        let number: LitInt = meta.value()?.parse()?;
        number.base10_parse::<u32>()?;
        *into = Some(number);
        Ok(())
    };
    let needs = "#[migrate] needs the schema of the struct: #[migrate(schema = 1)]";
    if attribute.meta.require_list().is_err() {
        return Err(Error::new(attribute.span(), needs));
    }
    attribute.parse_nested_meta(read)?;
    let schema: LitInt = schema.ok_or_else(|| Error::new(attribute.span(), needs))?;
    let newest = newest.unwrap_or_else(|| schema.clone());
    if newest.base10_parse::<u32>()? < schema.base10_parse::<u32>()? {
        return Err(Error::new(newest.span(), "newest must not be below schema"));
    }
    Ok(Schemas { schema, newest })
}

/// Generates the value of a function marked `#[migrate]`. With `whole`, the struct is the state.
pub(crate) fn hook(function: &ImplItemFn, schemas: &Schemas, whole: bool) -> Result<TokenStream> {
    let signature = &function.sig;
    check(signature, "migrate")?;
    let (expected, shape) = match whole {
        true => (2, "fn migrate(from: u32, old: serde_json::Value) -> Self"),
        false => (1, "fn migrate(from: u32)"),
    };
    if signature.receiver().is_some() || typed(signature).count() != expected {
        let text = format!("a #[migrate] function has no self: {shape}");
        return Err(Error::new(signature.span(), text));
    }
    let Schemas { schema, newest } = schemas;
    let ident = &signature.ident;
    let private = quote!(::ostraca_sdk::__private);
    let result = here(signature.output.span());
    let call = match whole {
        true => quote_spanned! {result=>
            |from| #private::migrate_struct::<Self>(from, |from, old| {
                #private::IntoMigrated::<Self>::into_migrated(Self::#ident(from, old))
            })
        },
        false => quote_spanned! {result=>
            |from| #private::IntoMigrated::<()>::into_migrated(Self::#ident(from))
        },
    };
    Ok(quote!(#private::MigrateHook { schema: #schema, newest: #newest, call: #call }))
}
