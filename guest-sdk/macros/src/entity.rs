//! Expands `#[entity]`: reads the block, sorts its methods, and generates the table.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Ident, ImplItem, ImplItemFn, ItemImpl, LitBool, LitStr, Result};

use crate::migration::{self, Schemas};
use crate::{method, reference, schema};

#[derive(Clone, Copy, PartialEq)]
enum StateModel {
    Whole,
    Keys,
    Events,
}

/// The options of the attribute.
struct Options {
    state: StateModel,
    /// Whether the component exports JSON Schemas of its methods.
    schemas: bool,
    /// The name of the type in the manifest: with it, a typed reference is generated.
    entity_type: Option<LitStr>,
    /// Whether this crate is the component. Otherwise, a macro is generated with which another crate exports the entity.
    export: bool,
}

/// The rows of the generated tables.
struct Tables {
    rows: Vec<TokenStream>,
    schemas: Vec<TokenStream>,
    timers: Vec<TokenStream>,
}

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let options = Options::parse(arguments)?;
    let mut block: ItemImpl = syn::parse2(item).map_err(|error| {
        Error::new(error.span(), "#[entity] belongs on an impl block: #[entity] impl Counter { … }")
    })?;
    if let Some((_, of, _)) = &block.trait_ {
        return Err(Error::new(
            of.span(),
            "#[entity] belongs on the struct's own impl block, not on a trait's",
        ));
    }
    if !block.generics.params.is_empty() {
        return Err(Error::new(
            block.generics.span(),
            "an entity cannot be generic: a component contains one entity type",
        ));
    }

    let mut rows = Vec::new();
    let mut schemas = Vec::new();
    let mut references = Vec::new();
    let mut start = None;
    let mut stop = None;
    let mut migrate = None;
    let mut timers = Vec::new();
    for item in &mut block.items {
        let ImplItem::Fn(function) = item else { continue };
        match take_marker(function)? {
            None => {}
            Some(Marker::RawMessage) => rows.push(method::raw_row(function)?),
            Some(Marker::Message) => {
                rows.push(method::row(function)?);
                if options.entity_type.is_some() {
                    references.push(reference::method(function)?);
                }
                if options.schemas {
                    schemas.push(schema::row(function)?);
                }
            }
            Some(Marker::Start) => once(&mut start, function, "start")?,
            Some(Marker::Stop) => once(&mut stop, function, "stop")?,
            Some(Marker::Timer) => timers.push(method::timer(function)?),
            Some(Marker::Migrate(schemas)) => {
                let hook = migration::hook(function, &schemas, options.state == StateModel::Whole)?;
                if migrate.replace(hook).is_some() {
                    return Err(Error::new(
                        function.sig.span(),
                        "duplicate #[migrate]: an entity has at most one",
                    ));
                }
            }
        }
    }
    if rows.is_empty() {
        return Err(Error::new(
            block.self_ty.span(),
            "an entity needs at least one method with #[message]",
        ));
    }
    let reference = match &options.entity_type {
        Some(name) => reference::reference(&block.self_ty, name, &references)?,
        None => TokenStream::new(),
    };
    let tables = Tables { rows, schemas, timers };
    let entity = output(&block, &options, &tables, (start, stop, migrate));
    Ok(quote!(#entity #reference))
}

fn output(
    block: &ItemImpl,
    options: &Options,
    tables: &Tables,
    (start, stop, migrate): (Option<TokenStream>, Option<TokenStream>, Option<TokenStream>),
) -> TokenStream {
    let Tables { rows, schemas, timers } = tables;
    let entity = &block.self_ty;
    let export = if stop.is_some() { quote!(export_with_stop) } else { quote!(export) };
    let export_timers = (!timers.is_empty()).then(|| quote!(, export_timer_handler));
    let export_migration = migrate.is_some().then(|| quote!(, export_migration));
    let export_schemas = (!schemas.is_empty()).then(|| quote!(, export_schemas));
    let none = quote!(::core::option::Option::None);
    let some = |hook| quote!(::core::option::Option::Some(#hook));
    let start = start.map_or(none.clone(), some);
    let stop = stop.map_or(none.clone(), some);
    let migrate = migrate.map_or(none, some);
    let exports = quote!(#export #export_timers #export_migration #export_schemas);
    let component = if options.export {
        quote!(::ostraca_sdk::__export_entity!(#entity, #exports);)
    } else {
        reference::export_macro(entity, &exports)
    };
    // Unmet bounds of the state model are reported at the struct's name.
    let style = match options.state {
        StateModel::Whole => quote_spanned!(entity.span()=> ::ostraca_sdk::__private::WholeState),
        StateModel::Keys => quote_spanned!(entity.span()=> ::ostraca_sdk::__private::KeyedState),
        StateModel::Events => quote_spanned!(entity.span()=> ::ostraca_sdk::__private::EventState),
    };
    let check = (options.state == StateModel::Keys).then(|| {
        quote_spanned! {entity.span()=>
            const _: () = ::core::assert!(
                ::core::mem::size_of::<#entity>() == 0,
                "with state = \"keys\" the struct must be empty: its fields would not be durable; store them under keys",
            );
        }
    });
    quote! {
        #block

        #check

        impl ::ostraca_sdk::entity::Entity for #entity {
            type StateModel = #style;
            const METHODS: &'static [::ostraca_sdk::__private::Method<Self>] = &[#(#rows),*];
            const START: ::core::option::Option<::ostraca_sdk::__private::StartHook<Self>> = #start;
            const STOP: ::core::option::Option<::ostraca_sdk::__private::StopHook<Self>> = #stop;
            #[allow(clippy::unit_arg, reason = "the function may return nothing")]
            const MIGRATE: ::core::option::Option<::ostraca_sdk::__private::MigrateHook> = #migrate;
            const TIMERS: &'static [::ostraca_sdk::__private::TimerMethod<Self>] = &[#(#timers),*];
            const SCHEMAS: &'static [::ostraca_sdk::__private::SchemaRow] = &[#(#schemas),*];
        }

        #component
    }
}

impl Options {
    fn parse(arguments: TokenStream) -> Result<Self> {
        let mut options =
            Self { state: StateModel::Whole, schemas: true, entity_type: None, export: true };
        let read = |meta: ParseNestedMeta<'_>| options.set(&meta);
        syn::meta::parser(read).parse2(arguments)?;
        Ok(options)
    }

    fn set(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        if meta.path.is_ident("schemas") {
            self.schemas = meta.value()?.parse::<LitBool>()?.value;
            return Ok(());
        }
        if meta.path.is_ident("type") {
            self.entity_type = Some(meta.value()?.parse()?);
            return Ok(());
        }
        if meta.path.is_ident("export") {
            self.export = meta.value()?.parse::<LitBool>()?.value;
            return Ok(());
        }
        if !meta.path.is_ident("state") {
            return Err(meta.error(
                "unknown option; the options are state = \"struct\", \"keys\" or \"events\", type = \"…\", \
                 export = false and schemas = false",
            ));
        }
        let text: LitStr = meta.value()?.parse()?;
        self.state = match text.value().as_str() {
            "struct" => StateModel::Whole,
            "keys" => StateModel::Keys,
            "events" => StateModel::Events,
            _ => {
                return Err(Error::new(
                    text.span(),
                    "state must be \"struct\" (the default), \"keys\" or \"events\"",
                ));
            }
        };
        Ok(())
    }
}

enum Marker {
    Message,
    /// The method reads the whole body itself.
    RawMessage,
    Start,
    Stop,
    Timer,
    Migrate(Schemas),
}

/// Removes the marker attribute from a function, since the compiler does not know it.
fn take_marker(function: &mut ImplItemFn) -> Result<Option<Marker>> {
    let mut found = None;
    let mut second: Option<Span> = None;
    let mut arguments: Option<Span> = None;
    let mut invalid: Option<Error> = None;
    function.attrs.retain(|attribute| {
        let marker = match attribute.path().get_ident().map(ToString::to_string).as_deref() {
            Some("message") => Marker::Message,
            Some("start") => Marker::Start,
            Some("stop") => Marker::Stop,
            Some("timer") => Marker::Timer,
            Some("migrate") => match migration::schemas(attribute) {
                Ok(schemas) => Marker::Migrate(schemas),
                Err(error) => {
                    invalid = Some(error);
                    return false;
                }
            },
            _ => return true,
        };
        let raw = matches!(marker, Marker::Message) && is_raw(attribute);
        let marker = if raw { Marker::RawMessage } else { marker };
        let takes_options = raw || matches!(marker, Marker::Migrate(_));
        if !takes_options && attribute.meta.require_path_only().is_err() {
            arguments = Some(attribute.span());
        }
        if found.replace(marker).is_some() {
            second = Some(attribute.span());
        }
        false
    });
    if let Some(error) = invalid {
        return Err(error);
    }
    if let Some(span) = arguments {
        return Err(Error::new(
            span,
            "#[message] takes only the option `raw`; #[start], #[stop] and #[timer] take no options",
        ));
    }
    if let Some(span) = second {
        return Err(Error::new(
            span,
            "a function can have only one of #[message], #[start], #[stop], #[timer] and #[migrate]",
        ));
    }
    Ok(found)
}

/// Whether it is `#[message(raw)]`.
fn is_raw(attribute: &Attribute) -> bool {
    attribute.parse_args::<Ident>().is_ok_and(|option| option == "raw")
}

fn once(slot: &mut Option<TokenStream>, function: &ImplItemFn, what: &str) -> Result<()> {
    let hook = method::hook(function, what)?;
    if slot.replace(hook).is_some() {
        return Err(Error::new(
            function.sig.span(),
            format!("duplicate #[{what}] hook: an entity has at most one"),
        ));
    }
    Ok(())
}
