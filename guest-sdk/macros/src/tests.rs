//! Each misuse of the macros is a compile error that says what to do.

use proc_macro2::TokenStream;
use quote::quote;

fn refused(item: TokenStream) -> String {
    refused_with(quote!(), item)
}

fn refused_with(arguments: TokenStream, item: TokenStream) -> String {
    match crate::entity::expand(arguments, item) {
        Ok(output) => panic!("expected an error, got {output}"),
        Err(error) => error.to_string(),
    }
}

fn method(method: TokenStream) -> String {
    refused(quote!(impl Counter { #[message] #method }))
}

#[test]
fn a_message_needs_a_borrowed_self() {
    for signature in [
        quote!(
            fn get() {}
        ),
        quote!(
            fn get(self) {}
        ),
        quote!(
            fn get(self: &Self) {}
        ),
    ] {
        assert!(method(signature).contains("&mut self (a command"));
    }
}

#[test]
fn a_message_is_neither_async_nor_generic_nor_unsafe() {
    assert!(
        method(quote!(
            async fn get(&self) {}
        ))
        .contains("not async")
    );
    assert!(
        method(quote!(
            fn get<T>(&self, t: T) {}
        ))
        .contains("cannot be generic")
    );
    assert!(
        method(quote!(
            fn get<'a>(&'a self) {}
        ))
        .contains("cannot be generic")
    );
    assert!(
        method(quote!(
            fn get(&self, t: impl Copy) {}
        ))
        .contains("cannot be generic")
    );
    assert!(
        method(quote!(
            unsafe fn get(&self) {}
        ))
        .contains("cannot be unsafe")
    );
}

#[test]
fn parameters_are_owned_and_have_plain_names() {
    assert!(
        method(quote!(
            fn get(&self, name: &str) {}
        ))
        .contains("use String for &str")
    );
    assert!(
        method(quote!(
            fn get(&self, (a, b): (u8, u8)) {}
        ))
        .contains("needs a plain name")
    );
    assert!(
        method(quote!(
            fn get(&self, _: u8) {}
        ))
        .contains("needs a plain name")
    );
}

#[test]
fn hook_signatures_are_fixed_and_hooks_are_unique() {
    let hook =
        |hook: TokenStream| refused(quote!(impl Counter { #hook #[message] fn get(&self) {} }));
    assert!(
        hook(quote!(
            #[start]
            fn start(&self) {}
        ))
        .contains("takes &mut self")
    );
    assert!(
        hook(quote!(
            #[start]
            fn start() {}
        ))
        .contains("takes &mut self")
    );
    assert!(
        hook(quote!(
            #[stop]
            fn stop(&mut self) -> u8 {
                0
            }
        ))
        .contains("returns nothing")
    );
    assert!(
        hook(quote!(
            #[stop]
            fn stop(&mut self, a: u8, b: u8) {}
        ))
        .contains("at most its reason")
    );
    assert!(
        hook(quote!(
            #[stop]
            fn a(&mut self) {}
            #[stop]
            fn b(&mut self) {}
        ))
        .contains("at most one")
    );
    assert!(
        hook(quote!(
            #[start]
            #[stop]
            fn a(&mut self) {}
        ))
        .contains("can have only one of")
    );
}

#[test]
fn a_timer_takes_at_most_its_payload() {
    let timer =
        |timer: TokenStream| refused(quote!(impl Counter { #timer #[message] fn get(&self) {} }));
    assert!(
        timer(quote!(
            #[timer]
            fn tick(&self) {}
        ))
        .contains("takes &mut self")
    );
    assert!(
        timer(quote!(
            #[timer]
            fn tick(&mut self, a: u8, b: u8) {}
        ))
        .contains("at most its payload")
    );
    assert!(
        timer(quote!(
            #[timer]
            fn tick(&mut self, a: &str) {}
        ))
        .contains("owned")
    );
    assert!(
        timer(quote!(
            #[timer]
            #[message]
            fn tick(&mut self) {}
        ))
        .contains("can have only one of")
    );
}

#[test]
fn the_macro_accepts_only_inherent_impls_with_messages() {
    assert!(
        refused(quote!(
            struct Counter;
        ))
        .contains("belongs on an impl block")
    );
    assert!(refused(quote!(impl Clone for Counter {})).contains("not on a trait's"));
    assert!(
        refused(quote!(
            impl<T> Counter<T> {}
        ))
        .contains("cannot be generic")
    );
    assert!(refused(quote!(impl Counter { fn get(&self) {} })).contains("at least one method"));
    let message = quote!(impl Counter { #[message(name = "x")] fn get(&self) {} });
    assert!(refused(message).contains("takes only the option `raw`"));
}

#[test]
fn unknown_options_are_refused() {
    let block = quote!(impl Counter { #[message] fn get(&self) {} });
    assert!(refused_with(quote!(state = "event"), block.clone()).contains("\"keys\""));
    assert!(refused_with(quote!(stat = "keys"), block).contains("unknown option"));
}

#[test]
fn an_application_error_is_an_enum() {
    let derived = crate::application_error::expand(quote!(
        struct Refused;
    ));
    assert!(derived.unwrap_err().to_string().contains("derived for enums"));
}

#[test]
fn migrate_needs_its_schema_and_has_no_self() {
    let migrate =
        |hook: TokenStream| refused(quote!(impl Counter { #hook #[message] fn get(&self) {} }));
    let bare = migrate(quote!(
        #[migrate]
        fn migrate(from: u32, old: Value) -> Self {}
    ));
    assert!(bare.contains("needs the schema"), "{bare}");
    let back = migrate(quote!(
        #[migrate(schema = 3, newest = 2)]
        fn migrate(from: u32, old: Value) -> Self {}
    ));
    assert!(back.contains("newest must not be below schema"), "{back}");
    let receiver = migrate(quote!(
        #[migrate(schema = 3)]
        fn migrate(&mut self, from: u32, old: Value) {}
    ));
    assert!(receiver.contains("has no self"), "{receiver}");
}

#[test]
fn a_reference_is_generated_only_for_a_named_type() {
    let block = quote!(
        impl Counter {
            #[message]
            fn get(&self) -> Result<u8, Error> {
                Ok(1)
            }
        }
    );
    let expand = |arguments| crate::entity::expand(arguments, block.clone()).unwrap().to_string();
    assert!(!expand(quote!()).contains("CounterRef"));
    assert!(expand(quote!(type = "counter")).contains("Query < u8 >"));
    assert!(refused_with(quote!(type = "Bank Account"), block.clone()).contains("entity.toml"));
}

#[test]
fn an_entity_is_exported_by_its_crate_or_by_another_one() {
    let block = quote!(
        impl BankAccount {
            #[message]
            fn get(&self) {}
        }
    );
    let expand = |arguments| crate::entity::expand(arguments, block.clone()).unwrap().to_string();
    let (here, elsewhere) = (expand(quote!()), expand(quote!(export = false)));
    assert!(here.contains("__export_entity ! (BankAccount") && !here.contains("macro_rules"));
    assert!(elsewhere.contains("macro_rules ! export_bank_account"));
    assert!(elsewhere.contains("__export_entity ! ($ entity"), "{elsewhere}");
    assert!(!elsewhere.contains("__export_entity ! (BankAccount"));
}
