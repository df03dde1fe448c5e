//! `ostraca completions SHELL`: prints a completion script.

use clap::CommandFactory;
use clap_complete::shells;

use crate::args::{Args, Completions, Shell};
use crate::failure::{Exit, Failure};
use crate::output;

pub(crate) fn run(args: &Completions) -> Result<Exit, Failure> {
    let mut command = Args::command();
    let mut script = Vec::new();
    match args.shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, "ostraca", &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, "ostraca", &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, "ostraca", &mut script),
    }
    output::text(&String::from_utf8_lossy(&script));
    Ok(Exit::Done)
}
