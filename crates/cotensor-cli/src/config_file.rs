//! The values of the configuration file as defaults of arguments. Variables and the command line take precedence over defaults.

use crate::args::Cli;
use clap::builder::{OsStr, Resettable};
use clap::{Arg, Command, CommandFactory};
use cotensor::core::{Error, ErrorKind, Result};
use cotensor_client::settings::{CONFIG, ConfigFile, Setting};
use std::error::Error as _;
use std::ffi::OsString;
use std::path::Path;

/// The command with the file's values as defaults.
pub(crate) fn with_defaults(command: Command, file: &ConfigFile) -> Command {
    if file.settings.is_empty() {
        return command;
    }
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = command.mut_args(|arg| match setting_of(&arg).and_then(|setting| file.value(setting)) {
        Some(value) => with_default(arg, value),
        None => arg,
    });
    names.iter().fold(command, |command, name| command.mut_subcommand(name, |command| with_defaults(command, file)))
}

fn with_default(arg: Arg, value: &str) -> Arg {
    match arg.get_value_delimiter() {
        Some(delimiter) => arg.default_values(value.split(delimiter).map(str::to_owned).collect::<Vec<_>>()),
        None => arg.default_value(value.to_owned()),
    }
}

/// The variables that give a process the file's values, whatever the file becomes. A variable that is set takes precedence.
pub(crate) fn variables(file: &ConfigFile) -> Vec<(OsString, OsString)> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let of_file = file.settings.iter().map(|found| (found.setting.variable, found.value.as_str()));
    let missing = of_file.filter(|(name, _)| !is_set(name));
    missing.chain([(CONFIG, "/dev/null")]).map(|(name, value)| (name.into(), value.into())).collect()
}

/// Checks the file's values by the arguments that they set.
///
/// # Errors
/// `Invalid` with the file, the line and the key.
pub(crate) fn check(file: &ConfigFile) -> Result<()> {
    wrong_values(file).next().map_or(Ok(()), Err)
}

/// The errors of the file's values.
pub(crate) fn wrong_values(file: &ConfigFile) -> impl Iterator<Item = Error> {
    file.settings.iter().filter_map(|found| {
        let error = check_value(found.setting, &found.value).err()?.prefixed(format_args!("line {}", found.line));
        Some(file.path.iter().fold(error, |error, path| error.in_file(path)))
    })
}

/// An error of the file with the commands that repair it.
pub(crate) fn with_way_out(error: Error) -> Error {
    let Some(key) = error.field().map(str::to_owned).filter(|_| error.kind() == ErrorKind::Invalid) else {
        return error;
    };
    let message = format!(
        "{}; `cotensor config set {key} VALUE` corrects it, `cotensor config unset {key}` removes it",
        error.message()
    );
    let file = error.file().map(Path::to_path_buf);
    let error = Error::invalid(message).in_field(key);
    file.into_iter().fold(error, |error, file| error.in_file(file))
}

/// Checks a value by the argument that it sets.
///
/// # Errors
/// `Invalid` with the key.
pub(crate) fn check_value(setting: &Setting, value: &str) -> Result<()> {
    let Some(arg) = argument_of(&Cli::command(), setting) else { return Ok(()) };
    let probe = Command::new("cotensor").no_binary_name(true).arg(arg.env(Resettable::<OsStr>::Reset));
    let parsed = probe.try_get_matches_from([format!("{}={value}", setting.argument)]);
    parsed.map(drop).map_err(|error| {
        let shown = error.to_string();
        let line = shown.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let reason = error.source().map_or(line, |reason| format!("{value:?}: {reason}"));
        Error::invalid(reason).in_field(setting.key())
    })
}

fn setting_of(arg: &Arg) -> Option<&'static Setting> {
    Setting::of_variable(arg.get_env()?.to_str()?)
}

/// The first argument that a setting sets.
fn argument_of(command: &Command, setting: &Setting) -> Option<Arg> {
    let own = command.get_arguments().find(|arg| setting_of(arg) == Some(setting)).cloned();
    own.or_else(|| command.get_subcommands().find_map(|command| argument_of(command, setting)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_client::settings::{SETTINGS, of_key};

    #[test]
    fn every_setting_is_checked_by_its_argument() {
        for setting in SETTINGS {
            assert!(argument_of(&Cli::command(), setting).is_some(), "{setting:?}");
        }
        for (key, good, bad) in [
            ("threads", &["1", "16"][..], &["0", "many", ""][..]),
            ("max_memory", &["4GiB", "4 GB"], &["4 pounds", "100"]),
            (
                "max_device_memory",
                &["cuda:0=1GiB", "cuda:0=1GiB,cuda:1=2GiB", "cuda=1GiB"],
                &["cpu=1GiB", "cuda:0", "cuda:0=1"],
            ),
            ("idle_exit", &["600", "10min"], &["0", "soon"]),
            ("allow_host", &["a.b,c"], &["http://a"]),
            ("autostart", &["true", "no", "0"], &["maybe"]),
            ("engine", &["auto", "rten"], &["torch"]),
            ("listen", &["", "127.0.0.1:0"], &[]),
        ] {
            let setting = of_key(key).unwrap();
            for value in good {
                check_value(setting, value).unwrap();
            }
            for value in bad {
                let error = check_value(setting, value).unwrap_err();
                assert_eq!(error.field(), Some(key), "{value:?}: {error}");
            }
        }
    }
}
