//! Guests written in the text format, for behaviour that no compiler produces.

use wasmparser::{Parser, Payload};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

const WIT: &str = include_str!("../../../../wit/ostraca-entity.wit");

/// The part of WASI that these guests use.
const WASI: &str = "
package wasi:io@0.2.0 {
    interface poll { resource pollable { block: func(); } }
    interface error { resource error; }
    interface streams {
        use error.{error};
        variant stream-error { last-operation-failed(error), closed }
        resource output-stream {
            blocking-write-and-flush: func(contents: list<u8>) -> result<_, stream-error>;
        }
    }
}
package wasi:clocks@0.2.0 {
    interface monotonic-clock {
        use wasi:io/poll@0.2.0.{pollable};
        now: func() -> u64;
        subscribe-duration: func(when: u64) -> pollable;
    }
}
package wasi:random@0.2.0 {
    interface random { get-random-u64: func() -> u64; }
    interface insecure { get-insecure-random-u64: func() -> u64; }
}
package wasi:cli@0.2.0 {
    interface stdout {
        use wasi:io/streams@0.2.0.{output-stream};
        get-stdout: func() -> output-stream;
    }
}";

/// A guest whose memory is all zeros, so that every result that is read from it is an empty list or `ok`. `parts` are
/// the functions `$start` and `$message` (and `$init`); `imports` are the functions that they call.
pub(crate) fn guest(wasi: &str, imports: &str, parts: &str) -> Vec<u8> {
    handmade(wasi, imports, parts)
}

/// Like [`guest`], with further exports in its world, whose functions are among `parts`.
#[allow(dead_code, reason = "not every file that includes this one uses it")]
pub(crate) fn guest_with_exports(exports: &str, parts: &str) -> Vec<u8> {
    handmade(exports, "", parts)
}

fn handmade(wasi: &str, imports: &str, parts: &str) -> Vec<u8> {
    let wit = WIT.replacen("world entity {", &format!("world entity {{ {wasi}"), 1) + WASI;
    let module = format!(
        r#"(module {imports}
            (memory (export "memory") 1)
            (table $table 1 funcref)
            {parts}
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
            (func (export "ostraca:entity/methods@0.1.0#methods") (result i32) (i32.const 1024))
            (func (export "ostraca:entity/handler@0.1.0#start") (param i32) (result i32)
                call $start (i32.const 1024))
            (func (export "ostraca:entity/handler@0.1.0#message") (param i32 i32 i32 i32) (result i32)
                call $message (i32.const 1024)))"#
    );
    let mut module = wat::parse_str(module).expect("valid WAT");
    let mut resolve = Resolve::default();
    let package = resolve.push_str("test.wit", &wit).expect("valid WIT");
    let world = resolve.select_world(&[package], Some("entity")).expect("the world exists");
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("types");
    let encoder = ComponentEncoder::default().validate(true).module(&module);
    encoder.and_then(|mut encoder| encoder.encode()).expect("an encodable module")
}

/// An entity that does nothing, and contains one more component, which is instantiated once. `nested` is the text of
/// that component.
pub(crate) fn with_nested(nested: &str) -> Vec<u8> {
    let mut component = guest("", "", "(func $start) (func $message)");
    let before = Parser::new(0).parse_all(&component).filter_map(Result::ok);
    // Counts the components nested directly in the outermost one; `depth` excludes those nested more deeply.
    let (mut depth, mut index) = (0, 0_u8);
    for payload in before {
        match payload {
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentSection { .. } if depth == 1 => index += 1,
            _ => {}
        }
    }
    let nested = wat::parse_str(nested).expect("valid WAT");
    component.push(4);
    leb(&mut component, nested.len());
    component.extend(nested);
    // One instance of the nested component, without arguments.
    component.extend([5, 4, 1, 0, index, 0]);
    component
}

fn leb(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A component that instantiates the one nested in it twice, `levels` levels deep: 2 to the power of `levels` in all.
pub(crate) fn doubling(levels: u32) -> String {
    let innermost = "(component $c0 (core module $m) (core instance (instantiate $m)))".to_owned();
    (1..=levels).fold(innermost, |inner, level| {
        let instance = format!("(instance (instantiate $c{}))", level - 1);
        format!("(component $c{level} {inner} {instance} {instance})")
    })
}

/// An entity whose `message` has this many nested loops. Compiling it takes much longer than reading it.
pub(crate) fn nested_loops(depth: usize) -> Vec<u8> {
    let body = format!("{}{}", "(loop ".repeat(depth), ")".repeat(depth));
    guest("", "", &format!("(func $start) (func $message {body})"))
}
