//! The compiler as a separate program, for tests that run a node in their own process.

fn main() {
    ostraca_node::compiler_main();
    eprintln!("this program compiles components for a node; only the node starts it");
    std::process::exit(2);
}
