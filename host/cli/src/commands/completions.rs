//! `ostraca completions SHELL`: prints a completion script.
//!
//! clap generates the part that knows the commands and their options. A second part asks `ostraca complete` for names
//! of types and methods, and leaves everything else to the first one.

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
    script.extend_from_slice(names(args.shell).as_bytes());
    output::text(&String::from_utf8_lossy(&script));
    Ok(Exit::Done)
}

/// The part of a script that completes names of types and methods. After `TYPE/` the id follows, so no space is added.
fn names(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => {
            r#"
_ostraca_names() {
    local names IFS=$' \t\n'
    names=$(ostraca complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ -z $names ]]; then
        _ostraca "$@"
        return
    fi
    IFS=$'\n'
    COMPREPLY=($(compgen -W "$names" -- "${COMP_WORDS[COMP_CWORD]}"))
    if [[ ${COMPREPLY[0]} == */ ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _ostraca_names -o bashdefault -o default ostraca
"#
        }
        Shell::Zsh => {
            r#"
_ostraca_names() {
    local -a names
    names=(${(f)"$(ostraca complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ! $#names )); then
        _ostraca "$@"
    elif [[ $names[1] == */ ]]; then
        compadd -S '' -a names
    else
        compadd -a names
    fi
}
compdef _ostraca_names ostraca
"#
        }
        Shell::Fish => {
            r#"
complete -c ostraca -n '__fish_seen_subcommand_from send tell inspect watch delete forget-entity restart-entity methods entities activate rollback deployments' -f -a '(ostraca complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
"#
        }
    }
}
