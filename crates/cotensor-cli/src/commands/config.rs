//! `config`: all settings, and the configuration file.

use crate::args::{ConfigArgs, ConfigCommand};
use crate::config_file::{check_value, wrong_values};
use crate::output::{print, print_json, printable, report};
use crate::table::{Table, plain};
use cotensor::core::{Error, Result};
use cotensor_client::settings::{ConfigFile, SETTINGS, Setting, change, config_path, of_key};
use serde::Serialize;
use std::path::PathBuf;

/// The JSON object of the list.
#[derive(Serialize)]
struct Listing {
    /// The configuration file, whether it exists or not.
    file: Option<PathBuf>,
    /// The mistakes in the file: unknown keys, and values that stop other commands.
    problems: Vec<String>,
    settings: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    key: String,
    /// The value, with invalid UTF-8 replaced. None for a default.
    value: Option<String>,
    source: Source,
    /// The line in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    variable: &'static str,
    argument: &'static str,
    default: &'static str,
    meaning: &'static str,
}

/// Where a value comes from.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    Variable,
    File,
    Default,
}

/// The JSON object of `path`, `set` and `unset`.
#[derive(Serialize)]
struct Changed {
    file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<bool>,
}

pub(crate) fn config(args: &ConfigArgs) -> Result<()> {
    match &args.command {
        None => list(args.json),
        Some(ConfigCommand::Get { key }) => get(of_key(key)?, args.json),
        Some(ConfigCommand::Path) => {
            let file = path()?;
            if args.json {
                print_json(&Changed { file, changed: None })
            } else {
                print(&format!("{}\n", file.display()))
            }
        }
        Some(ConfigCommand::Set { key, value }) => {
            check_value(of_key(key)?, value)?;
            changed(key, Some(value), args.json)
        }
        Some(ConfigCommand::Unset { key }) => changed(key, None, args.json),
    }
}

fn path() -> Result<PathBuf> {
    config_path().ok_or_else(|| {
        Error::not_found("no folder for the configuration: set HOME, XDG_CONFIG_HOME or COTENSOR_CONFIG")
    })
}

fn changed(key: &str, value: Option<&str>, json: bool) -> Result<()> {
    let file = path()?;
    let changed = change(&file, key, value)?;
    if json { print_json(&Changed { file, changed: Some(changed) }) } else { Ok(()) }
}

fn entry(setting: &'static Setting, file: &ConfigFile) -> Entry {
    let of_variable = std::env::var_os(setting.variable).filter(|value| !value.is_empty());
    let of_file = file.get(setting);
    let (value, source) = match (of_variable, of_file) {
        (Some(value), _) => (Some(value.to_string_lossy().into_owned()), Source::Variable),
        (None, Some(found)) => (Some(found.value.clone()), Source::File),
        (None, None) => (None, Source::Default),
    };
    let line = of_file.filter(|_| matches!(source, Source::File)).map(|found| found.line);
    let Setting { variable, argument, default, meaning } = *setting;
    Entry { key: setting.key(), value, source, line, variable, argument, default, meaning }
}

/// The settings that can be read, and the mistakes in the file.
fn load() -> (ConfigFile, Vec<String>) {
    let (file, errors) = ConfigFile::inspect();
    let errors = errors.into_iter().chain(wrong_values(&file)).map(|error| format!("error: {error}"));
    let problems = errors.chain(file.warnings().map(|warning| format!("warning: {warning}"))).collect();
    (file, problems)
}

fn report_all(problems: &[String]) {
    problems.iter().for_each(|problem| report(&printable(problem)));
}

fn get(setting: &'static Setting, json: bool) -> Result<()> {
    let (file, problems) = load();
    let entry = entry(setting, &file);
    report_all(&problems);
    if json {
        return print_json(&entry);
    }
    entry.value.map_or(Ok(()), |value| print(&format!("{}\n", plain(&value))))
}

fn list(json: bool) -> Result<()> {
    let (file, problems) = load();
    let settings = SETTINGS.iter().map(|setting| entry(setting, &file)).collect();
    let listing = Listing { settings, file: file.path, problems };
    if json {
        return print_json(&listing);
    }
    let mut table = Table::new(&[], &["setting", "value", "from"]);
    for Entry { key, value, source, line, variable, default, .. } in &listing.settings {
        let from = match source {
            Source::Variable => (*variable).to_owned(),
            Source::File => format!("line {} of the file", line.unwrap_or_default()),
            Source::Default => "default".to_owned(),
        };
        let value = value.as_deref().map_or_else(|| format!("({default})"), plain);
        table.row([key.clone(), value, from]);
    }
    let exists = listing.file.as_ref().filter(|file| file.exists());
    let file = match (exists, &listing.file) {
        (Some(file), _) => format!("file: {}\n", plain(&file.display().to_string())),
        (None, Some(file)) => format!("file: {} (missing)\n", plain(&file.display().to_string())),
        (None, None) => String::new(),
    };
    report_all(&listing.problems);
    print(&format!("{}{file}", table.text()))
}
