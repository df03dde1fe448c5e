//! The typed calls that `ostraca client` writes: as they were written before, compiled in each language, and used.
//! `BLESS=1` writes the expected files.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ostraca_client::{CallError, CallOptions, InvokeError, Session};
use ostraca_process_tests::artifacts;
use ostraca_schema::client::{EntityType, Language, Method, typed_client};
use ostraca_test_servers::browser::node_and_npm;

use crate::Setting;
use crate::callers::{python, typescript};

#[rustfmt::skip]
#[allow(dead_code, unreachable_pub, reason = "written as a program outside of this workspace uses it")]
mod account;
#[rustfmt::skip]
#[allow(dead_code, unreachable_pub, reason = "written as a program outside of this workspace uses it")]
mod cart;
#[rustfmt::skip]
#[allow(dead_code, unreachable_pub, reason = "written as a program outside of this workspace uses it")]
mod counter;

const TYPES: [&str; 3] = ["account", "cart", "counter"];
const LANGUAGES: [(&str, &str); 3] = [("ts", "ts"), ("python", "py"), ("rust", "rs")];

fn folder() -> PathBuf {
    artifacts::root().join("tests/process/tests/clients/typed")
}

/// The Rust calls, with the types of the cart only compiled.
async fn use_rust(session: &Session) -> Result<()> {
    let options = CallOptions::default();
    let counter = counter::CounterEntity::new(session, "typed-rust");
    ensure!(counter.add(5, &options).await? == 5);
    counter.limit(Some(7), &options).await?;
    let refused = counter.add(5, &options).await;
    let code = match &refused {
        Err(InvokeError::Call(CallError::Application { code, .. })) => &**code,
        _ => "",
    };
    ensure!(code == "limit-reached", "{refused:?}");
    ensure!(counter.get(&options).await? == 5);
    let account = account::AccountEntity::new(session, "typed-rust");
    account.deposit(500, &options).await?;
    account.withdraw(200, &options).await?;
    ensure!(account.balance(&options).await? == 300);
    let cart = cart::CartEntity::new(session, "typed-rust");
    ensure!(cart.contents(&options).await?.status == cart::Status::Open);
    Ok(())
}

fn run(mut command: Command) -> Result<String> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}\n{text}\n{errors}");
    Ok(text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typed_calls_compile_and_run_in_each_language() -> Result<()> {
    let setting = Setting::start("typed").await?;
    // Carts are for clients with certificates, unless the manifest says otherwise.
    let manifest = artifacts::manifest("cart")?.replace("send = [\"client/*\"]", "send = [\"*\"]");
    setting.admin.deploy(&manifest, artifacts::component("cart")?, None).await?;
    let home = setting.cluster.home(0);
    for entity_type in TYPES {
        for (language, extension) in LANGUAGES {
            let file = folder().join(format!("{entity_type}.{extension}"));
            let written = home.command(&["client", entity_type, "--lang", language])?;
            ensure!(written.status.success(), "{written:?}");
            let written = String::from_utf8(written.stdout)?;
            if std::env::var_os("BLESS").is_some() {
                std::fs::write(&file, &written)?;
            }
            let expected = std::fs::read_to_string(&file).unwrap_or_default();
            ensure!(written == expected, "{} differs: BLESS=1 writes it", file.display());
        }
    }
    use_rust(&setting.admin.session()).await?;

    let [client, compiler] = typescript()?;
    let scratch = artifacts::scratch("typed")?;
    let modules = scratch.join("node_modules");
    std::fs::create_dir_all(&modules)?;
    if !modules.join("ostraca").exists() {
        std::os::unix::fs::symlink(&client, modules.join("ostraca"))?;
    }
    std::fs::write(scratch.join("package.json"), r#"{"type": "module"}"#)?;
    for entry in std::fs::read_dir(folder())? {
        let path = entry?.path();
        std::fs::copy(&path, scratch.join(path.file_name().context("a name")?))?;
    }
    hostile(&scratch)?;
    let mut compile = Command::new(compiler);
    compile.current_dir(&scratch).args(["--strict", "--target", "es2022", "--module", "nodenext"]);
    compile.args(["--types", "", "--lib", "es2023,dom", "--exactOptionalPropertyTypes"]);
    compile.args(["use.ts", "cart.ts", "hostile.ts"]);
    run(compile)?;
    let addresses = setting.gateways.http.join(",");
    let (node, _) = node_and_npm();
    let used = |mut command: Command| {
        command.current_dir(&scratch).env("TOKEN", &setting.gateways.tokens[0]);
        command.env("ADDRESSES", &addresses).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PYTHONPATH", artifacts::root().join("host/client/python"));
        run(command)
    };
    let mut typescript = Command::new(node);
    typescript.arg("use.js");
    let expected = "5 limit-reached 5 300 open\n";
    ensure!(used(typescript)? == expected);

    let python = python()?;
    let mut check = Command::new(&python);
    check.args(["-m", "mypy", "--strict", "--cache-dir", "mypy"]);
    check
        .args(["use.py", "cart.py", "hostile.py"])
        .arg(artifacts::root().join("tests/process/clients/python.py"));
    check.arg(artifacts::root().join("host/client/python/ostraca"));
    used(check)?;
    let mut import = Command::new(&python);
    import.args(["-c", "import hostile, cart; print(len(hostile.__dict__) > 5)"]);
    ensure!(used(import)? == "True\n");
    let mut program = Command::new(&python);
    program.arg("use.py");
    ensure!(used(program)? == expected);
    setting.admin.close().await;
    Ok(())
}

/// Writes the typed calls of a type whose author wants them to run code.
fn hostile(dir: &std::path::Path) -> Result<()> {
    let evil = [
        "*/ throw evil(); /*",
        "\"\"\"\nraise evil()\n\"\"\"",
        "\"); throw evil(); (\"",
        "\u{202e}\u{2028}throw evil()",
        "\\",
        "__proto__",
        "constructor",
        "then",
        "self",
        "options",
        "class",
        "1",
    ];
    let members: serde_json::Map<_, _> =
        evil.iter().map(|name| ((*name).to_owned(), serde_json::json!({"const": name}))).collect();
    let schema = serde_json::json!({
        "type": "object", "properties": members, "required": evil, "title": evil[0],
        "description": evil[1], "additionalProperties": false,
    });
    let wrapped = serde_json::json!({
        "anyOf": [schema, {"type": "array", "items": {"$ref": "#/anyOf/0"}}, {"$ref": "#"}, {"type": "null"}],
    });
    let (schema, wrapped) = (schema.to_string(), wrapped.to_string());
    let methods: Vec<_> = evil
        .iter()
        .map(|name| Method {
            name,
            is_command: true,
            summary: name,
            arguments: &schema,
            result: &wrapped,
        })
        .collect();
    let entity_type = EntityType { name: evil[0], revision: 1, methods: &methods };
    for (language, file) in [(Language::TypeScript, "hostile.ts"), (Language::Python, "hostile.py")]
    {
        std::fs::write(dir.join(file), typed_client(language, &entity_type))?;
    }
    Ok(())
}
