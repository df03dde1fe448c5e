//! Compiles the published protocol; protox needs no `protoc` on the machine that builds.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "proto/ostraca/v1/member.proto",
        "proto/ostraca/v1/problem.proto",
        "proto/ostraca/v1/message.proto",
        "proto/ostraca/v1/admin.proto",
        "proto/ostraca/v1/hello.proto",
        "proto/ostraca/v1/peer.proto",
    ];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    prost_build::Config::new()
        .bytes(["."])
        .btree_map(["."])
        // Every `Result` with a `Problem` would be as large as its rarest field.
        .boxed(".ostraca.v1.Problem.hint.owner")
        .compile_fds(descriptors)?;
    Ok(())
}
