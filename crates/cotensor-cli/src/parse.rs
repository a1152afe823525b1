//! Parses the command line; environment variables set options.

use crate::args::Cli;
use crate::config_file::{check_value, with_defaults};
use clap::builder::{OsStr, Resettable};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use cotensor::core::Error;
use cotensor_client::settings::{ConfigFile, SETTINGS, Setting};
use std::ffi::OsString;

/// Parses `arguments`, starting with the program's name. An empty variable counts as unset. The values of `file` are defaults.
///
/// # Errors
/// Usage errors, help and version, as clap formats them.
pub(crate) fn parse(arguments: &[OsString], file: &ConfigFile) -> Result<Cli, clap::Error> {
    parse_with(arguments, file, is_empty_variable).map_err(|error| {
        // The usage line of an error lists options that variables set. Errors that no variable causes are shown without
        // them.
        match parse_with(arguments, file, |_| true) {
            Err(without_variables) => without_variables,
            Ok(_) => SETTINGS.iter().find_map(wrong_variable).unwrap_or(error),
        }
    })
}

/// Whether the arguments have `--json`, for a command that has this option. Arguments that are wrong count, too.
pub(crate) fn wants_json(arguments: &[OsString]) -> bool {
    fn has_json(command: &Command) -> bool {
        command.get_arguments().any(|arg| arg.get_long() == Some("json")) || command.get_subcommands().any(has_json)
    }
    let is_given =
        arguments.iter().skip(1).take_while(|argument| *argument != "--").any(|argument| argument == "--json");
    is_given && arguments.get(1).is_some_and(|name| Cli::command().find_subcommand(name).is_some_and(has_json))
}

/// The error for wrong arguments, without the usage.
pub(crate) fn usage_error(error: &clap::Error) -> Error {
    let shown = error.to_string();
    let reason = shown.split("\n\nUsage:").next().unwrap_or_default();
    Error::invalid(
        reason.trim_end_matches("\n\nFor more information, try '--help'.\n").trim_start_matches("error: ").trim(),
    )
}

/// The error for the value of a setting's variable, if it is wrong. The arguments are right, so their usage would not help.
fn wrong_variable(setting: &Setting) -> Option<clap::Error> {
    let value = std::env::var_os(setting.variable).filter(|value| !value.is_empty())?;
    let reason = match value.to_str() {
        Some(text) => check_value(setting, text).err()?.message().to_owned(),
        None => format!("{value:?} is not UTF-8 text"),
    };
    let Setting { variable, argument, .. } = setting;
    let message = format!("the variable {variable} ({argument}): {reason}; correct the variable or unset it\n");
    Some(clap::Error::raw(ErrorKind::ValueValidation, message))
}

/// Parses without the variables of the options for which `ignored` is true.
fn parse_with(arguments: &[OsString], file: &ConfigFile, ignored: fn(&Arg) -> bool) -> Result<Cli, clap::Error> {
    let command = without_variables(with_defaults(Cli::command(), file), ignored);
    let matches = command.try_get_matches_from(arguments)?;
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

/// Whether the option's variable is empty. For options with an optional value, an empty variable has a meaning:
/// `COTENSOR_LISTEN=` is `--listen`.
fn is_empty_variable(arg: &Arg) -> bool {
    let needs_value = arg.get_num_args().is_none_or(|count| count.min_values() > 0);
    let empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    needs_value && arg.get_env().is_some_and(empty)
}

/// Refuses options that would have no effect.
fn refuse_unread_options(matches: &ArgMatches) -> Result<(), clap::Error> {
    match matches.subcommand() {
        Some(("run", run)) => refuse_options_of_run(run),
        Some(("serve", serve)) => refuse_options_of_serve(serve),
        _ => Ok(()),
    }
}

/// Options of one part of the daemon. A variable or the configuration file may have them for another command.
fn refuse_options_of_serve(serve: &ArgMatches) -> Result<(), clap::Error> {
    for (id, option, part, needed) in [
        ("max_spill", "--max-spill", "spill", "--spill <DIR>"),
        ("token_file", "--token-file", "listen", "--listen"),
        ("allow_host", "--allow-host", "listen", "--listen"),
    ] {
        if serve.value_source(id) == Some(ValueSource::CommandLine) && !serve.contains_id(part) {
            let message = format!("{option} has no effect without {needed}");
            return Err(Cli::command().error(ErrorKind::MissingRequiredArgument, message));
        }
    }
    Ok(())
}

fn refuse_options_of_run(run: &ArgMatches) -> Result<(), clap::Error> {
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
