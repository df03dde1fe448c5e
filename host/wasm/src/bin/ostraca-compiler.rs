//! The compiler as a separate program, for this crate's tests.

fn main() {
    ostraca_wasm::compiler_main();
    eprintln!("this program compiles components for a node; only the node starts it");
    std::process::exit(2);
}
