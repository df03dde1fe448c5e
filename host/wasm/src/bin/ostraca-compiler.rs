//! The compiler as a separate program, for this crate's tests.

fn main() {
    ostraca_wasm::compiler_main();
    eprintln!("this program compiles components for a node, which starts it itself");
    std::process::exit(2);
}
