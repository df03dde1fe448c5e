//! The command-line program `ostraca`, a thin layer over the libraries.
//!
//! Standard output gets only results, standard error everything else. So `ostraca send … | jq` works, and
//! `--output json` prints errors as JSON too. Each command returns a `Failure` with the exit code that
//! `--help` documents.

mod args;
mod commands;
mod connection;
mod failure;
mod logging;
mod output;
mod project;
mod quote;
mod usage;

use std::process::ExitCode;

use clap::Parser;
use ostraca_codes::codes;

use crate::args::{Args, Command};
use crate::failure::{Exit, Failure};

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    // Does not return in a process that a node has started to compile a component.
    ostraca_node::compiler_main();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage::report(&error),
    };
    let (output, colour) = (args.global.output, output::colour());
    match run(args) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprint!("{}", failure.render(output, colour));
            failure.exit.into()
        }
    }
}

fn run(args: Args) -> Result<Exit, Failure> {
    logging::start(&args)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
            Failure::unexpected(codes::THREAD_FAILED, format!("cannot start threads: {error}"))
        })?;
    let exit = runtime.block_on(dispatch(args));
    // A read of standard input or a compilation may still block a thread; do not wait for it.
    runtime.shutdown_background();
    match (exit, output::lost()) {
        (Ok(_), Some(error)) => {
            let text =
                format!("the command succeeded, but its result could not be written: {error}");
            Err(Failure::unexpected(codes::OUTPUT_WRITE_FAILED, text)
                .help("check the destination of standard output"))
        }
        (exit, _) => exit,
    }
}

async fn dispatch(args: Args) -> Result<Exit, Failure> {
    let global = &args.global;
    match args.command {
        Command::Init(it) => commands::init::run(global, &it),
        Command::Run(it) => commands::run::run(&it).await,
        Command::Dev(it) => commands::dev::run(global, &it).await,
        Command::Config(it) => commands::config::run(global, &it),
        Command::Store(it) => commands::store::run(global, &it).await,
        Command::Repair(it) => commands::repair::run(global, &it).await,
        Command::Reset(it) => commands::reset::run(global, &it).await,
        Command::Ca(it) => commands::ca::run(global, &it).await,
        Command::Token(it) => commands::token::run(global, &it),
        Command::New(it) => commands::new::run(global, &it),
        Command::Build(it) => commands::build::run(global, &it).await,
        Command::Deploy(it) => commands::deploy::run(global, &it).await,
        Command::Activate(it) => {
            let rollout = commands::activate::rollout(&it);
            commands::activate::run(global, &it.entity_type, Some(it.revision), rollout).await
        }
        Command::Rollback(it) => commands::activate::run(global, &it.entity_type, None, None).await,
        Command::Deployments(it) => commands::deployments::run(global, &it).await,
        Command::Client(it) => commands::client::run(global, &it).await,
        Command::Methods(it) => commands::methods::run(global, &it).await,
        Command::Send(it) => commands::send::run(global, &it).await,
        Command::Tell(it) => commands::tell::run(global, &it).await,
        Command::Watch(it) => commands::watch::run(global, &it).await,
        Command::Status => commands::status::run(global).await,
        Command::Nodes => commands::nodes::run(global).await,
        Command::Top(it) => commands::top::run(global, &it).await,
        Command::Upgrade(it) => commands::upgrade::run(global, &it).await,
        Command::Shards(it) => commands::shards::run(global, &it).await,
        Command::Entities(it) => commands::entities::run(global, &it).await,
        Command::Inspect(it) => commands::inspect::run(global, &it).await,
        Command::Delete(it) => commands::delete::run(global, &it).await,
        Command::DeadLetters(it) => commands::dead_letters::run(global, &it).await,
        Command::Export(it) => commands::export::run(global, &it).await,
        Command::Backup(it) => commands::backup::run(global, &it).await,
        Command::Restore(it) => commands::backup::restore(global, &it),
        Command::Import(it) => commands::import::run(global, &it).await,
        Command::Undeploy(it) => commands::undeploy::run(global, &it).await,
        Command::ForgetEntity(it) => commands::forget_entity::run(global, &it).await,
        Command::RestartEntity(it) => commands::restart_entity::run(global, &it).await,
        Command::Drain(it) => commands::drain::run(global, &it).await,
        Command::Forget(it) => commands::forget::run(global, &it).await,
        Command::Cluster(it) => commands::cluster::run(global, &it).await,
        Command::Policy(it) => commands::policy::run(global, &it).await,
        Command::Namespace(it) => commands::namespaces::run(global, &it).await,
        Command::Pool(it) => commands::pools::run(global, &it).await,
        Command::Whoami => commands::whoami::run(global).await,
        Command::Revoke(it) => commands::revoke::run(global, &it).await,
        Command::Revocations(it) => commands::revoke::list(global, &it).await,
        Command::Secret(it) => commands::variables::secret(global, &it).await,
        Command::Setting(it) => commands::variables::setting(global, &it).await,
        Command::Audit(it) => commands::audit::run(global, &it).await,
        Command::Rebalance(it) => commands::rebalance::run(global, &it).await,
        Command::Events(it) => commands::events::run(global, &it).await,
        Command::Completions(it) => commands::completions::run(&it),
        Command::Complete(it) => commands::complete::run(&it).await,
    }
}
