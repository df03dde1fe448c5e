//! Generates the typed reference to entities of a type: `Counter::at("alice").add(5)`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, GenericArgument, Ident, ImplItemFn, LitStr, PathArguments, Result,
    ReturnType, Type,
};

use crate::method::{conditions, here, name_of, owned, typed};

/// Generates the method of the reference that calls a `#[message]`.
pub(crate) fn method(function: &ImplItemFn) -> Result<TokenStream> {
    let signature = &function.sig;
    let (mut parameters, mut arguments) = (Vec::new(), Vec::new());
    for (at, parameter) in typed(signature).enumerate() {
        let (name, ty) = owned(parameter)?;
        let local = parameter_name(&name, at);
        parameters.push(quote!(#local: #ty));
        // A type that cannot be serialized is reported at that type.
        arguments.push(quote_spanned!(here(ty.span())=> .argument::<#ty>(#name, &#local)));
    }
    let ident = &signature.ident;
    let name = name_of(ident, "method")?;
    let mutable = signature.receiver().is_some_and(|receiver| receiver.mutability.is_some());
    let (call, build) =
        if mutable { (quote!(Command), quote!(command)) } else { (quote!(Query), quote!(query)) };
    let result = result(&signature.output);
    let visibility = &function.vis;
    let docs = function.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let docs: Vec<&Attribute> = docs.chain(conditions(function)).collect();
    Ok(quote! {
        #(#docs)*
        #[allow(clippy::too_many_arguments, reason = "the method has as many")]
        #visibility fn #ident(&self, #(#parameters),*) -> ::ostraca_sdk::call::#call<#result> {
            ::ostraca_sdk::call::CallBuilder::new(&self.0, #name)
                #(#arguments)*
                .#build()
        }
    })
}

/// Generates the reference, whose name is the entity's followed by `Ref`.
pub(crate) fn reference(
    entity: &Type,
    kind: &LitStr,
    methods: &[TokenStream],
) -> Result<TokenStream> {
    let name = struct_name(entity)
        .ok_or_else(|| Error::new(entity.span(), "an entity is a struct with a name"))?;
    let reference = format_ident!("{name}Ref");
    let text = kind.value();
    if !is_type_name(&text) {
        return Err(Error::new(
            kind.span(),
            "the type must be the one in entity.toml: letters, digits, dots, dashes and underscores, as in \"bank-account\"",
        ));
    }
    let about = format!(
        "Refers to one entity of the type `{text}`. Its methods make calls of the entity's methods."
    );
    let at = format!("Refers to the entity of the type `{text}` with this id.");
    Ok(quote! {
        #[doc = #about]
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub struct #reference(::ostraca_sdk::messaging::Entity);

        impl #entity {
            #[doc = #at]
            pub fn at(id: impl ::core::convert::Into<::std::string::String>) -> #reference {
                #reference(::ostraca_sdk::messaging::Entity::new(#text, id))
            }
        }

        #[allow(dead_code, reason = "a program may use only some of them")]
        impl #reference {
            #(#methods)*
        }

        impl ::core::convert::AsRef<::ostraca_sdk::messaging::Entity> for #reference {
            fn as_ref(&self) -> &::ostraca_sdk::messaging::Entity {
                &self.0
            }
        }
    })
}

/// Generates the macro with which another crate exports the entity: `export_counter!(path::to::Counter)`.
pub(crate) fn export_macro(entity: &Type, exports: &TokenStream) -> TokenStream {
    let Some(name) = struct_name(entity) else { return TokenStream::new() };
    let name = format_ident!("export_{}", snake(&name.to_string()));
    quote! {
        /// Exports the entity as the component of the crate that calls this macro.
        #[macro_export]
        macro_rules! #name {
            ($entity:ty) => {
                ::ostraca_sdk::__export_entity!($entity, #exports);
            };
        }
    }
}

fn struct_name(entity: &Type) -> Option<&Ident> {
    match entity {
        Type::Path(path) => path.path.segments.last().map(|last| &last.ident),
        _ => None,
    }
}

/// `BankAccount` becomes `bank_account`.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !out.is_empty() && !out.ends_with('_') {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

fn parameter_name(name: &str, at: usize) -> Ident {
    // A keyword can be a parameter's name only as a raw identifier.
    syn::parse_str(name).unwrap_or_else(|_| format_ident!("argument{at}"))
}

/// The type of the value that a caller gets: `T` of a `Result<T, E>`.
fn result(output: &ReturnType) -> TokenStream {
    let ReturnType::Type(_, ty) = output else { return quote!(()) };
    if let Type::Path(path) = &**ty
        && let Some(last) = path.path.segments.last()
        && last.ident == "Result"
        && let PathArguments::AngleBracketed(arguments) = &last.arguments
        && let Some(GenericArgument::Type(value)) = arguments.args.first()
    {
        return quote!(#value);
    }
    quote!(#ty)
}

/// The same rule as for `type` in a manifest.
fn is_type_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
