//! Expands `#[derive(ApplicationError)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, LitStr, Result, Variant};

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let item: DeriveInput = syn::parse2(item)?;
    let Data::Enum(data) = &item.data else {
        return Err(Error::new(
            item.span(),
            "ApplicationError can only be derived for enums, whose variants give the codes; for a single error use \
             ostraca_sdk::Error::new(\"code\", \"message\")",
        ));
    };
    if !item.generics.params.is_empty() {
        return Err(Error::new(item.generics.span(), "an application error cannot be generic"));
    }
    let name = &item.ident;
    let mut arms = Vec::new();
    for variant in &data.variants {
        let ident = &variant.ident;
        let code = code(variant)?;
        arms.push(quote! { #name::#ident { .. } => #code });
    }
    Ok(quote! {
        impl ::ostraca_sdk::ApplicationError for #name {
            fn code(&self) -> ::std::borrow::Cow<'_, str> {
                ::std::borrow::Cow::Borrowed(match *self { #(#arms),* })
            }

            fn message(&self) -> ::std::string::String {
                ::std::string::ToString::to_string(self)
            }
        }

        impl ::core::convert::From<#name> for ::ostraca_sdk::Error {
            fn from(error: #name) -> Self {
                let code = ::ostraca_sdk::ApplicationError::code(&error).into_owned();
                Self::new(code, ::std::string::ToString::to_string(&error))
            }
        }
    })
}

fn code(variant: &Variant) -> Result<String> {
    let mut code = kebab(&variant.ident.to_string());
    for attribute in &variant.attrs {
        if attribute.path().is_ident("code") {
            let text: LitStr = attribute.parse_args().map_err(|_| {
                Error::new(
                    attribute.span(),
                    "the code must be a string literal: #[code(\"insufficient-funds\")]",
                )
            })?;
            code = text.value();
        }
    }
    if code.is_empty() || code.len() > 128 {
        return Err(Error::new(variant.span(), "a code must be 1 to 128 bytes long"));
    }
    Ok(code)
}

/// `InsufficientFunds` becomes `insufficient-funds`, `HTTPRefused` becomes `http-refused`.
fn kebab(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let starts_word = letter.is_uppercase()
            && at > 0
            && (!letters[at - 1].is_uppercase()
                || letters.get(at + 1).is_some_and(|next| next.is_lowercase()));
        if starts_word && !out.ends_with('-') {
            out.push('-');
        }
        match letter {
            '_' if out.ends_with('-') => {}
            '_' => out.push('-'),
            letter => out.extend(letter.to_lowercase()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::kebab;

    #[test]
    fn a_code_is_the_variants_name_in_kebab_case() {
        assert_eq!(kebab("InsufficientFunds"), "insufficient-funds");
        assert_eq!(kebab("Overflow"), "overflow");
        assert_eq!(kebab("HTTPRefused"), "http-refused");
        assert_eq!(kebab("Over9000"), "over9000");
    }
}
