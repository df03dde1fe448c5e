//! Compiles the published protocol; with protox, the build machine needs no `protoc`.

use protox::prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "proto/ostraca/v1/member.proto",
        "proto/ostraca/v1/problem.proto",
        "proto/ostraca/v1/message.proto",
        "proto/ostraca/v1/admin.proto",
        "proto/ostraca/v1/subscription.proto",
        "proto/ostraca/v1/hello.proto",
        "proto/ostraca/v1/peer.proto",
    ];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    // For the JSON form of administrative messages.
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    prost_build::Config::new()
        .bytes(["."])
        .btree_map(["."])
        // Unboxed, this rare field would determine the size of every `Result` with a `Problem`.
        .boxed(".ostraca.v1.Problem.hint.owner")
        // It may have the text of a secret: see `variable.rs`.
        .skip_debug([".ostraca.v1.Variable"])
        .compile_fds(descriptors)?;
    Ok(())
}
