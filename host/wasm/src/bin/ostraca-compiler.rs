//! The compiler as a program of its own, for tests of this crate.

fn main() {
    ostraca_wasm::compiler_main();
    eprintln!("this program compiles components for a node, which starts it itself");
    std::process::exit(2);
}
