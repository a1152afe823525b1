//! Every `COTENSOR_*` variable, once: the arguments refer to these names, `cotensor env` and docs/environment.md are
//! made from the table.

use std::fmt::Write;

/// A variable that the environment may set.
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    /// The argument that it stands in for; that wins where both are given.
    pub(crate) argument: &'static str,
    pub(crate) what: &'static str,
    pub(crate) default: &'static str,
}

macro_rules! variables {
    ($($ident:ident $name:literal $argument:literal $default:literal $what:literal;)*) => {
        $(pub(crate) const $ident: &str = $name;)*

        /// All of them.
        pub(crate) const VARIABLES: &[Variable] =
            &[$(Variable { name: $name, argument: $argument, what: $what, default: $default }),*];
    };
}

variables! {
    CACHE "COTENSOR_CACHE" "--cache" "the user's cache folder" "Where weights (and the demo's models) are kept.";
    THREADS "COTENSOR_THREADS" "--threads" "one per core" "Threads of the engine.";
    MAX_MEMORY "COTENSOR_MAX_MEMORY" "--max-memory" "none" "The store's budget in MiB: the daemon's, which counts 1 KiB more for each tensor, or that of a store inside a process.";
    MAX_CLIENT_MEMORY "COTENSOR_MAX_CLIENT_MEMORY" "--max-client-memory" "none" "What one client of the daemon may lease and reserve, in MiB.";
    SPILL "COTENSOR_SPILL" "--spill" "unused tensors are dropped" "The folder in which the daemon keeps what nobody leases when memory is wanted.";
    MAX_SPILL "COTENSOR_MAX_SPILL" "--max-spill" "what the disk takes" "The most bytes of that, in MiB.";
    SOCKET "COTENSOR_SOCKET" "--socket" "cotensor.sock in $XDG_RUNTIME_DIR, else in /tmp/cotensor-UID" "The daemon's Unix socket.";
    LISTEN "COTENSOR_LISTEN" "--listen" "no HTTP" "Where the daemon answers HTTP, such as 127.0.0.1:2537; empty for loopback and port 2537 + RANK.";
    TOKEN_FILE "COTENSOR_TOKEN_FILE" "--token-file" "made beside the socket" "The file of the token that the daemon's HTTP clients need.";
    ALLOW_HOST "COTENSOR_ALLOW_HOST" "--allow-host" "plain addresses and localhost" "Host names by which the daemon's HTTP clients may address it, with commas between them.";
    LOG "COTENSOR_LOG" "--log" "info" "What the daemon logs: off, error, warn, info, debug, trace, or a list such as `warn,cotensor_daemon=debug`.";
}

/// The table as `cotensor help env` shows it.
pub(crate) fn help() -> String {
    // Writing to a string cannot fail.
    let mut text = String::from("Variables (an argument wins over its variable):\n");
    for Variable { name, argument, default, what } in VARIABLES {
        let _ = writeln!(text, "  {name} ({argument}) [default: {default}]\n      {what}");
    }
    text
}

/// The table as docs/environment.md has it.
pub(crate) fn markdown() -> String {
    let mut text = String::from(
        "# Environment\n\nMade by `cotensor env --markdown`; an argument wins over its variable.\n\n\
         | variable | argument | default | meaning |\n|---|---|---|---|\n",
    );
    for Variable { name, argument, default, what } in VARIABLES {
        let _ = writeln!(text, "| `{name}` | `{argument}` | {default} | {what} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    fn used(command: &clap::Command, found: &mut BTreeSet<(String, String)>) {
        for argument in command.get_arguments() {
            if let (Some(name), Some(long)) = (argument.get_env(), argument.get_long()) {
                found.insert((name.to_str().unwrap().to_owned(), format!("--{long}")));
            }
        }
        command.get_subcommands().for_each(|command| used(command, found));
    }

    #[test]
    fn the_table_is_what_the_arguments_read() {
        let mut found = BTreeSet::new();
        used(&Cli::command(), &mut found);
        let table = VARIABLES.iter().map(|variable| (variable.name.to_owned(), variable.argument.to_owned()));
        assert_eq!(found, table.collect());
    }

    #[test]
    fn the_document_is_made_from_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md");
        let document = std::fs::read_to_string(path).unwrap();
        assert!(document == markdown(), "docs/environment.md: write it with `cotensor env --markdown`");
    }
}
