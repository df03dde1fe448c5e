//! An entity in C: the project that `ostraca new` makes, and one that uses what wasi-libc has.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use ostraca_client::{CallError, Client, Entity};
use ostraca_process_tests::{NodeDir, NodeProcess, artifacts};
use ostraca_test_servers::clang::clang;

/// Prints, counts and fails with the functions of C's library.
const LIBRARY: &str = r#"
#include "ostraca.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const ostraca_method METHODS[] = {
  { "year", OSTRACA_QUERY, "" }, { "print", OSTRACA_COMMAND, "" }, { "fail", OSTRACA_COMMAND, "" },
  { "deep", OSTRACA_COMMAND, "" },
};

static int deep(int n) {
  volatile char part[4096];
  part[n % 4096] = (char)n;
  return n == 0 ? 0 : deep(n - 1) + part[n % 4096];
}

void exports_ostraca_entity_methods_methods(exports_ostraca_entity_methods_list_method_t *all) {
  ostraca_list(all, METHODS, 4);
}

bool exports_ostraca_entity_handler_message(
    ostraca_string *method, ostraca_bytes *body, ostraca_bytes *reply, ostraca_error *error) {
  (void)error;
  if (ostraca_is(method, "year")) {
    time_t now = time(NULL);
    char text[8];
    int len = snprintf(text, sizeof text, "%d", gmtime(&now)->tm_year + 1900);
    return ostraca_reply(reply, text, len);
  }
  if (ostraca_is(method, "fail")) exit(3);
  if (ostraca_is(method, "deep")) {
    int depth = body->len == 1 ? body->ptr[0] - '0' : 1000;
    return deep(depth) == -1 ? ostraca_refuse(error, "never", "") : ostraca_reply(reply, "null", 4);
  }
  printf("printed %.*s, %s\n", (int)body->len, body->ptr, getenv("HOME") ? "at home" : "nowhere");
  fflush(stdout);
  return ostraca_reply(reply, "null", 4);
}
"#;

fn ostraca(dir: &Path, arguments: &[&str]) -> Result<String> {
    let mut ostraca = Command::new(artifacts::ostraca()?);
    let output = ostraca.current_dir(dir).args(arguments).env("CLANG", clang()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout) + &text(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {printed}");
    Ok(printed)
}

async fn deploy(client: &Client, project: &Path) -> Result<()> {
    let manifest = std::fs::read_to_string(project.join("entity.toml"))?;
    let component = std::fs::read(project.join("target/ostraca/hello.wasm"))?;
    client.deploy(&manifest, component.into(), None).await?;
    Ok(())
}

fn code<T>(result: Result<T, CallError>) -> String {
    result.err().map_or_else(String::new, |error| error.code().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entity_in_c_is_built_and_called() -> Result<()> {
    let scratch = artifacts::scratch("c")?;
    let project = scratch.join("hello");
    if project.exists() {
        std::fs::remove_dir_all(&project)?;
    }
    ostraca(&scratch, &["new", "hello", "--lang", "c"])?;
    let built = ostraca(&project, &["build"])?;
    ensure!(built.contains("greet (command), last (query)"), "{built}");
    ensure!(!built.contains("warning"), "{built}");
    let home = NodeDir::init("c")?;
    let node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy(&client, &project).await?;
    let (session, alice) = (client.session(), Entity::new("hello", "alice"));
    ensure!(session.query(&alice, "last", "").await?.body == "null");
    for (text, count) in [("\"hello\"", "1"), ("\"ü€😀\"", "2")] {
        let reply = session.command(&alice, "greet", text).await?;
        ensure!(reply.body == count, "{reply:?}");
    }
    ensure!(code(session.command(&alice, "greet", "\"\"").await) == "empty-greeting");
    ensure!(code(session.command(&alice, "greet", "5").await) == "invalid-arguments");
    ensure!(code(session.command(&alice, "greeet", "5").await) == "unknown-method");
    client.close().await;

    node.kill_9()?;
    let node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    let session = client.session();
    ensure!(session.query(&alice, "last", "").await?.body == "\"ü€😀\"");
    for count in 3..1_000 {
        let reply = session.command(&alice, "greet", "\"again and again\"").await?;
        ensure!(reply.body == count.to_string(), "{reply:?}");
    }

    std::fs::write(project.join("src/entity.c"), LIBRARY)?;
    ostraca(&project, &["build"])?;
    deploy(&client, &project).await?;
    let year = session.query(&alice, "year", "").await?.body;
    ensure!(std::str::from_utf8(&year)?.parse::<u32>()? >= 2_025, "{year:?}");
    session.command(&alice, "print", "\"this\"").await?;
    ensure!(code(session.command(&alice, "fail", "").await) == "panicked");
    session.command(&alice, "deep", "9").await?;
    let overflow = code(session.command(&alice, "deep", "1000").await);
    ensure!(overflow == "trap", "an overflow of the stack: {overflow}");
    let log = node.log();
    ensure!(log.contains("printed \"this\", nowhere"), "{log}");
    client.close().await;
    node.stop()?;

    // What does not compile is shown with its line.
    std::fs::write(project.join("src/entity.c"), "int f( { return 1; }\n")?;
    let failed = ostraca(&project, &["build"]).err().map(|error| error.to_string());
    let failed = failed.unwrap_or_default();
    ensure!(failed.contains("entity.c:1:8") && failed.contains("build-failed"), "{failed}");
    Ok(())
}
