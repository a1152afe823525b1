//! Completion by the shell. The script of `cotensor completions` runs this program at each TAB, with the words of the command line.
//! Names of tensors and functions come from the running daemon, names of models from the hub's cache.

use crate::args::Cli;
use crate::output::write_out;
use clap::{Command, CommandFactory};
use clap_complete::env::Shells;
use clap_complete::{ArgValueCompleter, CompletionCandidate, PathCompleter};
use cotensor::core::{Error, Result};
use cotensor::hub::Hub;
use cotensor_client::ClientStore;
use cotensor_client::protocol::{ListFunctions, ListFunctionsParams, ListNames, ListNamesParams};
use cotensor_client::settings::{SETTINGS, Setting};
use std::ffi::{OsStr, OsString};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The variable with the name of the shell that asks for completions.
const VARIABLE: &str = "COTENSOR_COMPLETE";
/// The name of the command in scripts.
const NAME: &str = "cotensor";
/// Names that are not found in this time are left out.
const TIME_MAX: Duration = Duration::from_millis(500);
/// The most names of one completion.
const NAMES_MAX: usize = 500;

/// Arguments that are names of tensors: commands and ids.
const TENSORS: &[(&[&str], &str)] = &[
    (&["get"], "name"),
    (&["put"], "name"),
    (&["rm"], "names"),
    (&["stat"], "names"),
    (&["who"], "names"),
    (&["ls"], "prefix"),
];
/// Arguments that are models.
const MODELS: &[(&[&str], &str)] = &[
    (&["run"], "target"),
    (&["embed"], "model"),
    (&["models", "load"], "model"),
    (&["models", "unload"], "model"),
    (&["stream"], "audio_model"),
    (&["stream"], "text_model"),
    (&["fit-adapter"], "from"),
    (&["fit-adapter"], "to"),
];
/// Arguments that are functions.
const FUNCTIONS: &[(&[&str], &str)] = &[(&["call"], "name")];
/// Arguments that are channels.
const CHANNELS: &[(&[&str], &str)] = &[(&["channel"], "name")];
/// Arguments that are keys of settings.
const KEYS: &[(&[&str], &str)] =
    &[(&["config", "get"], "key"), (&["config", "set"], "key"), (&["config", "unset"], "key")];

/// The script that lets a shell complete.
///
/// # Errors
/// `Unsupported` for an unknown shell.
pub(crate) fn script(shell: &str) -> Result<String> {
    let shells = Shells::builtins();
    let shell = shells.completer(shell).ok_or_else(|| Error::unsupported("no completions for this shell"))?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, NAME, NAME, NAME, &mut script)
        .map_err(|error| Error::io("cannot write the script", &error))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Prints completions if a shell asks for them. Returns whether one does.
pub(crate) fn complete(arguments: &[OsString]) -> bool {
    let Some(shell) = std::env::var(VARIABLE).ok().filter(|shell| !shell.is_empty()) else { return false };
    // Errors would appear in the command line that is edited.
    let shells = Shells::builtins();
    let words = arguments.iter().position(|argument| argument == "--").map(|at| arguments[at + 1..].to_vec());
    if let (Some(shell), Some(words)) = (shells.completer(&shell), words) {
        let (mut command, mut shown) = (command(), Vec::new());
        command.build();
        let folder = std::env::current_dir().ok();
        if shell.write_complete(&mut command, words, folder.as_deref(), &mut shown).is_ok() {
            let _ = write_out(&String::from_utf8_lossy(&shown));
        }
    }
    true
}

/// The command with completions for its arguments.
fn command() -> Command {
    let completers = [
        (TENSORS, ArgValueCompleter::new(tensors)),
        (MODELS, ArgValueCompleter::new(models)),
        (FUNCTIONS, ArgValueCompleter::new(functions)),
        (CHANNELS, ArgValueCompleter::new(channels)),
        (KEYS, ArgValueCompleter::new(keys)),
    ];
    let arguments =
        completers.iter().flat_map(|(places, completer)| places.iter().map(move |place| (place, completer)));
    arguments.fold(Cli::command(), |command, ((path, id), completer)| with(command, path, id, completer))
}

/// The command with a completion for one argument of the subcommand at `path`.
fn with(command: Command, path: &[&str], id: &str, completer: &ArgValueCompleter) -> Command {
    match path {
        // `mut_arg` would move a positional argument behind the others.
        [] => command.mut_args(|arg| if arg.get_id() == id { arg.add(completer.clone()) } else { arg }),
        [name, rest @ ..] => command.mut_subcommand(name, |command| with(command, rest, id, completer)),
    }
}

fn keys(current: &OsStr) -> Vec<CompletionCandidate> {
    let prefix = current.to_string_lossy();
    candidates(SETTINGS.iter().map(Setting::key).filter(|key| key.starts_with(&*prefix)).collect())
}

fn tensors(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(prefix) = current.to_str().map(str::to_owned) else { return Vec::new() };
    candidates(of_daemon(move |daemon| {
        let params = ListNamesParams { prefix, after: String::new(), limit: NAMES_MAX };
        Ok(daemon.request::<ListNames>(&params)?.names.into_iter().map(|named| named.name).collect())
    }))
}

fn functions(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(prefix) = current.to_str().map(str::to_owned) else { return Vec::new() };
    candidates(of_daemon(move |daemon| {
        let found = daemon.request::<ListFunctions>(&ListFunctionsParams { prefix })?.functions;
        Ok(found.into_iter().take(NAMES_MAX).map(|found| found.function.name).collect())
    }))
}

fn channels(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(prefix) = current.to_str().map(str::to_owned) else { return Vec::new() };
    candidates(of_daemon(move |daemon| {
        let names = daemon.channels()?.into_iter().map(|channel| channel.opened.name);
        Ok(names.filter(|name| name.starts_with(&prefix)).take(NAMES_MAX).collect())
    }))
}

/// Models in the hub's cache, and paths.
fn models(current: &OsStr) -> Vec<CompletionCandidate> {
    let prefix = current.to_string_lossy().into_owned();
    let names = in_time(move || {
        let names = Hub::from_env().cached()?.into_iter().map(|model| model.name);
        Ok(names.filter(|name| name.starts_with(&prefix)).take(NAMES_MAX).collect())
    });
    let mut found = candidates(names);
    found.extend(ArgValueCompleter::new(PathCompleter::any()).complete(current));
    found
}

/// What a running daemon answers in time. Starts no daemon.
fn of_daemon(request: impl FnOnce(&ClientStore) -> Result<Vec<String>> + Send + 'static) -> Vec<String> {
    in_time(move || request(&*ClientStore::connect_within(None, "cotensor completions", TIME_MAX)?))
}

/// The names, if they are found in time and without error.
fn in_time(find: impl FnOnce() -> Result<Vec<String>> + Send + 'static) -> Vec<String> {
    let (sender, names) = channel();
    // The end of this process ends a thread that still searches.
    let search = move || drop(sender.send(find().unwrap_or_default()));
    match std::thread::Builder::new().spawn(search) {
        Ok(_) => names.recv_timeout(TIME_MAX).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// Names as candidates, without those that a shell would not take as one plain word.
fn candidates(names: Vec<String>) -> Vec<CompletionCandidate> {
    let plain = |name: &String| {
        !name.starts_with('-') && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./:@%+,=".contains(&byte))
    };
    names.into_iter().filter(plain).map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_arguments_exist() {
        let command = command();
        command.clone().debug_assert();
        for (path, id) in [TENSORS, MODELS, FUNCTIONS, CHANNELS, KEYS].concat() {
            let found = path.iter().fold(&command, |command, name| command.find_subcommand(name).unwrap());
            let found = found.get_arguments().find(|arg| arg.get_id() == id);
            assert!(found.unwrap().get::<ArgValueCompleter>().is_some(), "{path:?} {id}");
        }
    }

    #[test]
    fn names_that_a_shell_would_change_are_left_out() {
        let names = ["bert/layer.0", "a b", "$(id)", "-rf", "x;y", "é", "a:b@c"].map(str::to_owned);
        let kept: Vec<_> = candidates(names.to_vec()).iter().map(|found| found.get_value().to_owned()).collect();
        assert_eq!(kept, ["bert/layer.0", "a:b@c"]);
    }
}
