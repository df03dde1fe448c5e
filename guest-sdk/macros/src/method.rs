//! Expands one method: turns its signature into a row of the table, or into a hook.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, Ident, ImplItemFn, Lit, Meta, Pat, PatType, Result,
    ReturnType, Signature, Type,
};

/// Generates the table row of a `#[message]`.
pub(crate) fn row(function: &ImplItemFn) -> Result<TokenStream> {
    let signature = &function.sig;
    let mutable = receiver(signature, "message")?;
    check(signature, "message")?;

    let mut shown = Vec::new();
    let mut parameters = Vec::new();
    let mut locals = Vec::new();
    let mut reads = Vec::new();
    for (at, parameter) in typed(signature).enumerate() {
        let (name, ty) = owned(parameter)?;
        let optional = is_option(ty);
        shown.push(format!("{name}: {}", compact(ty)));
        parameters
            .push(quote!(::ostraca_sdk::__private::Parameter { name: #name, optional: #optional }));
        let local = format_ident!("argument{at}");
        // A type that cannot be deserialized is reported at that type.
        reads.push(quote_spanned!(here(ty.span())=> let #local = arguments.get::<#ty>(#at)?;));
        locals.push(local);
    }

    let ident = &signature.ident;
    let name = name_of(ident, "method")?;
    let kind = if mutable { quote!(Command) } else { quote!(Query) };
    let summary = summary(&function.attrs);
    let shown = format!("{name}({})", shown.join(", "));
    let (conditions, encode) = (conditions(function), encode(signature));
    Ok(quote! {
        #(#conditions)*
        ::ostraca_sdk::__private::Method {
            name: #name,
            kind: ::ostraca_sdk::context::MessageKind::#kind,
            summary: #summary,
            signature: #shown,
            parameters: &[#(#parameters),*],
            raw: false,
            #[allow(
                clippy::let_unit_value,
                clippy::needless_borrow,
                unused_variables,
                reason = "generated code serves methods without parameters or results as well"
            )]
            call: |entity, arguments| {
                #[allow(unused_imports, reason = "the result's type decides which of the two is used")]
                use ::ostraca_sdk::__private::{ResultKind as _, ValueKind as _};
                #(#reads)*
                let value = Self::#ident(entity, #(#locals),*);
                #encode
            },
        }
    })
}

/// Generates the table row of a `#[message(raw)]`.
pub(crate) fn raw_row(function: &ImplItemFn) -> Result<TokenStream> {
    let signature = &function.sig;
    let mutable = receiver(signature, "message")?;
    check(signature, "message")?;
    let mut parameters = typed(signature);
    let body = match (parameters.next(), parameters.next()) {
        (None, _) => quote!(),
        (Some(parameter), None) => {
            let (_, ty) = owned(parameter)?;
            quote_spanned!(here(ty.span())=> arguments.body::<#ty>()?)
        }
        _ => {
            return Err(Error::new(
                signature.inputs.span(),
                "a #[message(raw)] takes at most one parameter: the body",
            ));
        }
    };
    let ident = &signature.ident;
    let name = name_of(ident, "method")?;
    let kind = if mutable { quote!(Command) } else { quote!(Query) };
    let summary = summary(&function.attrs);
    let shown = format!("{name}(body)");
    let conditions = conditions(function);
    let result = match &signature.output {
        ReturnType::Default => signature.ident.span(),
        ReturnType::Type(_, ty) => ty.span(),
    };
    let encode = quote_spanned!(here(result)=> (&value).ostraca_kind().encode_raw(value));
    Ok(quote! {
        #(#conditions)*
        ::ostraca_sdk::__private::Method {
            name: #name,
            kind: ::ostraca_sdk::context::MessageKind::#kind,
            summary: #summary,
            signature: #shown,
            parameters: &[],
            raw: true,
            #[allow(
                clippy::let_unit_value,
                clippy::needless_borrow,
                unused_variables,
                reason = "generated code serves methods without parameters or results as well"
            )]
            call: |entity, arguments| {
                #[allow(unused_imports, reason = "the result's type decides which of the two is used")]
                use ::ostraca_sdk::__private::{ResultKind as _, ValueKind as _};
                let value = Self::#ident(entity, #body);
                #encode
            },
        }
    })
}

/// Generates the function pointer of a `#[start]` or `#[stop]`.
pub(crate) fn hook(function: &ImplItemFn, what: &str) -> Result<TokenStream> {
    let signature = &function.sig;
    if !receiver(signature, what)? {
        return Err(Error::new(signature.span(), format!("a #[{what}] hook takes &mut self")));
    }
    check(signature, what)?;
    let reason = match typed(signature).count() {
        0 => quote!(),
        1 => quote!(reason),
        _ => {
            return Err(Error::new(
                signature.inputs.span(),
                format!("a #[{what}] hook takes &mut self and at most its reason"),
            ));
        }
    };
    let ident = &signature.ident;
    let call = quote!(Self::#ident(entity, #reason));
    if what == "start" {
        return Ok(quote_spanned! {here(signature.output.span())=>
            #[allow(clippy::unit_arg, reason = "a hook may return nothing")]
            |entity, reason| ::ostraca_sdk::__private::IntoStartResult::into_start_result(#call)
        });
    }
    if let ReturnType::Type(_, ty) = &signature.output {
        return Err(Error::new(
            ty.span(),
            "a #[stop] hook returns nothing: nobody receives its result",
        ));
    }
    Ok(quote!(|entity, reason| #call))
}

/// Generates the table row of a `#[timer]`.
pub(crate) fn timer(function: &ImplItemFn) -> Result<TokenStream> {
    let signature = &function.sig;
    if !receiver(signature, "timer")? {
        return Err(Error::new(signature.span(), "a #[timer] takes &mut self"));
    }
    check(signature, "timer")?;
    let mut parameters = typed(signature);
    let payload = match (parameters.next(), parameters.next()) {
        (None, _) => quote!(),
        (Some(parameter), None) => {
            let (_, ty) = owned(parameter)?;
            quote_spanned!(here(ty.span())=> ::ostraca_sdk::__private::timer_payload::<#ty>(payload)?)
        }
        _ => {
            return Err(Error::new(
                signature.inputs.span(),
                "a #[timer] takes &mut self and at most its payload",
            ));
        }
    };
    let ident = &signature.ident;
    let name = name_of(ident, "timer")?;
    let (conditions, encode) = (conditions(function), encode(signature));
    Ok(quote! {
        #(#conditions)*
        ::ostraca_sdk::__private::TimerMethod {
            name: #name,
            #[allow(
                clippy::let_unit_value,
                clippy::needless_borrow,
                unused_variables,
                reason = "generated code serves methods without payload or result as well"
            )]
            call: |entity, payload| {
                #[allow(unused_imports, reason = "the result's type decides which of the two is used")]
                use ::ostraca_sdk::__private::{ResultKind as _, ValueKind as _};
                let value = Self::#ident(entity, #payload);
                #encode
            },
        }
    })
}

/// The name by which callers know a function. `what` describes the function in the error.
pub(crate) fn name_of(ident: &Ident, what: &str) -> Result<String> {
    let name = ident.unraw().to_string();
    if name.len() > 128 {
        let text = format!("a {what}'s name must be at most 128 bytes long");
        return Err(Error::new(ident.span(), text));
    }
    Ok(name)
}

/// The conditions (`cfg`) under which the function exists. Its table row gets the same ones.
pub(crate) fn conditions(function: &ImplItemFn) -> impl Iterator<Item = &Attribute> {
    function.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg"))
}

/// Generates the encoding of the function's result, `value`. A compile error points at the result's type.
fn encode(signature: &Signature) -> TokenStream {
    let result = match &signature.output {
        ReturnType::Default => signature.ident.span(),
        ReturnType::Type(_, ty) => ty.span(),
    };
    quote_spanned!(here(result)=> (&value).ostraca_kind().encode(value))
}

/// Errors point at `span`, but names resolve in the macro's scope, even if another macro wrote the tokens there.
pub(crate) fn here(span: Span) -> Span {
    span.resolved_at(Span::call_site())
}

/// Whether the method takes `&mut self`. Anything but `&self` and `&mut self` is an error.
fn receiver(signature: &Signature, what: &str) -> Result<bool> {
    match signature.receiver() {
        Some(receiver) if receiver.reference.is_some() && receiver.colon_token.is_none() => {
            Ok(receiver.mutability.is_some())
        }
        _ => Err(Error::new(
            signature.receiver().map_or_else(|| signature.span(), Spanned::span),
            match what {
                "message" => {
                    "a #[message] takes &mut self (a command, which may change state) or &self (a query, which may \
                     not)"
                        .to_owned()
                }
                "timer" => "a #[timer] takes &mut self".to_owned(),
                _ => format!("a #[{what}] hook takes &mut self"),
            },
        )),
    }
}

pub(crate) fn check(signature: &Signature, what: &str) -> Result<()> {
    if let Some(keyword) = &signature.asyncness {
        return Err(Error::new(
            keyword.span(),
            format!(
                "a #[{what}] is not async: a turn runs to completion, and the host suspends it while it waits"
            ),
        ));
    }
    if let Some(keyword) = &signature.unsafety {
        return Err(Error::new(keyword.span(), format!("a #[{what}] cannot be unsafe")));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new(
            signature.generics.span(),
            format!(
                "a #[{what}] cannot be generic: use concrete types that JSON can be decoded into"
            ),
        ));
    }
    Ok(())
}

pub(crate) fn typed(signature: &Signature) -> impl Iterator<Item = &PatType> {
    signature.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(parameter) => Some(parameter),
        FnArg::Receiver(_) => None,
    })
}

/// A parameter's name and type, if an argument or payload can be decoded into it.
pub(crate) fn owned(parameter: &PatType) -> Result<(String, &Type)> {
    let Pat::Ident(name) = &*parameter.pat else {
        return Err(Error::new(
            parameter.pat.span(),
            "a #[message]'s parameter needs a plain name, which callers use in JSON",
        ));
    };
    match &*parameter.ty {
        Type::Reference(ty) => Err(Error::new(
            ty.span(),
            "a #[message]'s parameter must be owned, not borrowed: use String for &str, Vec<T> for &[T]",
        )),
        Type::ImplTrait(ty) => Err(Error::new(
            ty.span(),
            "a #[message] cannot be generic: use concrete types that JSON can be decoded into",
        )),
        ty => Ok((name.ident.unraw().to_string(), ty)),
    }
}

pub(crate) fn is_option(ty: &Type) -> bool {
    match ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == "Option"),
        _ => false,
    }
}

/// A type as it is usually written: `quote` prints a space between all tokens.
fn compact(ty: &Type) -> String {
    let spaced = quote!(#ty).to_string();
    let mut out = String::new();
    let mut words = spaced.split(' ').peekable();
    while let Some(word) = words.next() {
        out.push_str(word);
        let word_like = |text: &str| text.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        if word == ","
            || word == ";"
            || words.peek().is_some_and(|next| word_like(word) && word_like(next))
        {
            out.push(' ');
        }
    }
    out
}

/// The first non-empty line of the doc comment.
fn summary(attributes: &[Attribute]) -> String {
    for attribute in attributes {
        if let Meta::NameValue(doc) = &attribute.meta
            && doc.path.is_ident("doc")
            && let Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) = &doc.value
            && !line.value().trim().is_empty()
        {
            return line.value().trim().to_owned();
        }
    }
    String::new()
}
