//! Expands one method into its row of the table of JSON Schemas.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{ImplItemFn, Result, ReturnType};

use crate::method::{conditions, here, is_option, name_of, owned, typed};

/// Generates the table row of a `#[message]`.
pub(crate) fn row(function: &ImplItemFn) -> Result<TokenStream> {
    let signature = &function.sig;
    let mut parameters = Vec::new();
    for parameter in typed(signature) {
        let (name, ty) = owned(parameter)?;
        let optional = is_option(ty);
        let describe = describe(&quote_spanned!(here(ty.span())=> #ty));
        parameters.push(quote! {
            ::ostraca_sdk::__private::ParameterSchema {
                name: #name,
                optional: #optional,
                describe: #describe,
            }
        });
    }
    let name = name_of(&signature.ident, "method")?;
    let result = match &signature.output {
        ReturnType::Default => quote!(()),
        ReturnType::Type(_, ty) => quote_spanned!(here(ty.span())=> #ty),
    };
    let result = describe(&result);
    let conditions = conditions(function);
    Ok(quote! {
        #(#conditions)*
        ::ostraca_sdk::__private::SchemaRow {
            method: #name,
            parameters: &[#(#parameters),*],
            result: #result,
        }
    })
}

fn describe(ty: &TokenStream) -> TokenStream {
    quote! {
        |generator| {
            #[allow(unused_imports, reason = "the type decides which of the three is used")]
            use ::ostraca_sdk::__private::{AnySchema as _, OkSchema as _, TypeSchema as _};
            #[allow(clippy::needless_borrow, reason = "the type decides how many borrows are used")]
            (&&&::ostraca_sdk::__private::Probe::<#ty>::NEW).schema(generator)
        }
    }
}
