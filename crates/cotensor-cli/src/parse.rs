//! Parsing the command line, where variables of the environment stand in for options.

use crate::args::Cli;
use clap::builder::{OsStr, Resettable};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;

/// Parses `arguments`, the program's name first. A variable that is set to nothing counts as not set.
///
/// # Errors
/// What clap shows: usage errors, help and versions.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    parse_with(arguments, is_set_to_nothing).map_err(|error| {
        // The usage line of an error lists a variable's option as one that the user gave. An error that does not come from a
        // variable is shown as it is without variables.
        parse_with(arguments, |_| true).err().unwrap_or(error)
    })
}

/// Parses without the variables of the options that `ignored` names.
fn parse_with(arguments: &[OsString], ignored: fn(&Arg) -> bool) -> Result<Cli, clap::Error> {
    let matches = without_variables(Cli::command(), ignored).try_get_matches_from(arguments)?;
    refuse_unread_options(&matches)?;
    Cli::from_arg_matches(&matches)
}

fn without_variables(command: Command, ignored: fn(&Arg) -> bool) -> Command {
    let reset = |arg: Arg| if ignored(&arg) { arg.env(Resettable::<OsStr>::Reset) } else { arg };
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = command.mut_args(reset);
    names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |subcommand| without_variables(subcommand, ignored))
    })
}

/// An option without a value of its own gives nothing a meaning: `COTENSOR_LISTEN=` is `--listen`.
fn is_set_to_nothing(arg: &Arg) -> bool {
    let needs_value = arg.get_num_args().is_none_or(|count| count.min_values() > 0);
    let empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    needs_value && arg.get_env().is_some_and(empty)
}

/// Refuses options that would change nothing.
fn refuse_unread_options(matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some(("run", run)) = matches.subcommand() else { return Ok(()) };
    if !run.get_flag("daemon") {
        return Ok(());
    }
    for (id, option) in [("cache", "--cache"), ("max_memory", "--max-memory")] {
        if run.value_source(id) == Some(ValueSource::CommandLine) {
            let message =
                format!("{option} cannot be used with --daemon: the daemon keeps the weights within its own budget");
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
        }
    }
    Ok(())
}
