//! The configuration file: TOML with one key for each setting, and no tables.

use super::table::{ALLOW_HOST, CACHE, CONFIG, LOG, MAX_DEVICE_MEMORY, SETTINGS, SOCKET, SPILL, Setting, TOKEN_FILE};
use crate::regular_file::open_regular_or_link;
use cotensor_core::{Error, Result};
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The most bytes of a configuration file.
pub const CONFIG_BYTES_MAX: u64 = 64 << 10;
/// Settings that are paths. A relative one would have a meaning of its own in each process.
const PATHS: &[Setting] = &[CACHE, SPILL, SOCKET, TOKEN_FILE];
/// Settings that may be lists.
const LISTS: &[Setting] = &[ALLOW_HOST, LOG, MAX_DEVICE_MEMORY];
/// A name in this file that is so similar to a setting's is taken for a mistyped one.
const SIMILARITY_MIN: f64 = 0.75;

/// The path of the configuration file: `COTENSOR_CONFIG`, else `cotensor/config.toml` in `$XDG_CONFIG_HOME`, else in `~/.config`.
/// None without a home folder.
pub fn config_path() -> Option<PathBuf> {
    path_in(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

fn path_in(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(path) = variable(CONFIG) {
        return Some(path.into());
    }
    // The specification of these folders ignores relative ones.
    let folder = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let folder = folder.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")))?;
    Some(folder.join("cotensor/config.toml"))
}

/// The settings of a configuration file.
#[derive(Clone, Debug, Default)]
pub struct ConfigFile {
    /// Its path. None without a home folder.
    pub path: Option<PathBuf>,
    /// The settings in it, in its order.
    pub settings: Vec<FileSetting>,
    /// Keys that belong to no setting, in its order. They have no effect.
    pub unknown: Vec<UnknownKey>,
    pub(super) text: String,
}

/// A key that belongs to no setting. A file of another version can have one, so it is a warning and not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// The key, at most 64 characters of it.
    pub key: String,
    /// The line, the most similar setting and the command that removes the key.
    pub message: String,
}

/// A setting in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSetting {
    /// The setting.
    pub setting: &'static Setting,
    /// The value as a command line has it.
    pub value: String,
    /// Its line, from 1 on.
    pub line: usize,
    /// The bytes from the key to the end of the value.
    pub(super) span: Range<usize>,
}

impl ConfigFile {
    /// Reads the file at [`config_path`]. A missing file has no settings, unless `COTENSOR_CONFIG` names it.
    ///
    /// # Errors
    /// `Invalid` for wrong TOML, a value of another type than text, number, truth value and lists of these, and a file that is too long or not
    /// regular; `NotFound`, `Io`. The error names the file, the line and the key.
    pub fn load() -> Result<Self> {
        let (file, errors) = Self::inspect();
        errors.into_iter().next().map_or(Ok(file), Err)
    }

    /// As [`load`](Self::load), with the settings that can be read and the errors of all others.
    pub fn inspect() -> (Self, Vec<Error>) {
        let Some(path) = config_path() else { return Default::default() };
        match Self::read_named(&path) {
            Ok(found) => found,
            Err(error) => (Self { path: Some(path), ..Self::default() }, vec![error]),
        }
    }

    fn read_named(path: &Path) -> Result<(Self, Vec<Error>)> {
        let named = std::env::var_os(CONFIG).is_some_and(|value| !value.is_empty());
        match Self::read_all(path) {
            Err(error) if !named && error.kind() == cotensor_core::ErrorKind::NotFound => {
                Ok((Self { path: Some(path.to_path_buf()), ..Self::default() }, Vec::new()))
            }
            Err(error) if named && error.kind() == cotensor_core::ErrorKind::NotFound => {
                Err(error.prefixed(format_args!("named by {CONFIG}")))
            }
            read => read,
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`load`](Self::load); `NotFound` for a missing file.
    pub fn read(path: &Path) -> Result<Self> {
        let (file, errors) = Self::read_all(path)?;
        errors.into_iter().next().map_or(Ok(file), Err)
    }

    fn read_all(path: &Path) -> Result<(Self, Vec<Error>)> {
        let text = read_bounded(path).map_err(|error| error.in_file(path))?;
        let Parsed { settings, unknown, errors } = parse(&text).map_err(|error| error.in_file(path))?;
        let errors = errors.into_iter().map(|error| error.in_file(path)).collect();
        Ok((Self { path: Some(path.to_path_buf()), settings, unknown, text }, errors))
    }

    /// The warnings about keys that belong to no setting, each with the file, the key and the line.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let path = self.path.as_deref().unwrap_or(Path::new(""));
        self.unknown.iter().map(|unknown| format!("{}: {}: {}", path.display(), unknown.key, unknown.message))
    }

    /// The setting as the file has it.
    pub fn get(&self, setting: &Setting) -> Option<&FileSetting> {
        self.settings.iter().find(|found| found.setting == setting)
    }

    /// The value of a setting.
    pub fn value(&self, setting: &Setting) -> Option<&str> {
        self.get(setting).map(|found| found.value.as_str())
    }
}

pub(super) fn read_bounded(path: &Path) -> Result<String> {
    // The file of a process that gets all settings as variables.
    if path == Path::new("/dev/null") {
        return Ok(String::new());
    }
    let file = open_regular_or_link(path, OFlags::RDONLY).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => Error::invalid("the configuration is not a regular file"),
        _ => Error::io("cannot read", &error),
    })?;
    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| Error::io("cannot read", &error))?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(Error::invalid(format!("a configuration has at most {CONFIG_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Error::invalid("not UTF-8 text"))
}

/// The settings of a text.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) settings: Vec<FileSetting>,
    pub(super) unknown: Vec<UnknownKey>,
    /// The errors of single settings.
    pub(super) errors: Vec<Error>,
}

/// Parses a text.
///
/// # Errors
/// `Invalid` for wrong TOML, with the line.
pub(super) fn parse(text: &str) -> Result<Parsed> {
    let line = |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
    let table = DeTable::parse(text).map_err(|error| {
        let line = line(error.span().map_or(0, |span| span.start));
        Error::invalid(format!("line {line}: {}", error.message()))
    })?;
    let mut parsed = Parsed::default();
    let mut entries: Vec<_> = table.get_ref().iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let (name, line) = (key.get_ref().as_ref(), line(key.span().start));
        let Some(setting) = Setting::of_key(name) else {
            let (key, hint) = (shown(name), hint(name));
            let message =
                format!("line {line}: not a setting, ignored; {hint}; `cotensor config unset {key}` removes it");
            parsed.unknown.push(UnknownKey { key, message });
            continue;
        };
        match value_of(setting, value.get_ref()) {
            Ok(value_text) => {
                let span = key.span().start..value.span().end;
                parsed.settings.push(FileSetting { setting, value: value_text, line, span });
            }
            Err(message) => parsed.errors.push(Error::invalid(format!("line {line}: {message}")).in_field(name)),
        }
    }
    Ok(parsed)
}

/// The value of a setting as a command line has it, or the reason why it is wrong.
fn value_of(setting: &Setting, value: &DeValue<'_>) -> std::result::Result<String, String> {
    let text = text_of(value).ok_or_else(|| {
        format!("{}, but a setting is a text, a number, a truth value or a list of these", value.type_str())
    })?;
    if matches!(value, DeValue::Array(_)) && !LISTS.contains(setting) {
        return Err("a list, where one value is expected".to_owned());
    }
    if PATHS.contains(setting) && !Path::new(&text).is_absolute() {
        return Err(format!("{text:?} is not an absolute path"));
    }
    Ok(text)
}

/// The setting with a key in the configuration file.
///
/// # Errors
/// `Invalid` with the most similar key.
pub fn of_key(key: &str) -> Result<&'static Setting> {
    Setting::of_key(key).ok_or_else(|| Error::invalid(format!("not a setting; {}", hint(key))).in_field(shown(key)))
}

/// The part of a name that messages show.
fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}

/// The most similar setting of a name that belongs to no setting.
fn hint(name: &str) -> String {
    let keys = SETTINGS.iter().map(Setting::key);
    let similar = keys.map(|key| (strsim::jaro_winkler(&key, name), key));
    let nearest = similar.filter(|(by, _)| *by >= SIMILARITY_MIN).max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest {
        Some((_, key)) => format!("did you mean {key}?"),
        None => "`cotensor config` lists all".to_owned(),
    }
}

/// The value as a command line has it.
fn text_of(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        DeValue::Array(parts) => {
            let text = |part: &toml::Spanned<DeValue<'_>>| match part.get_ref() {
                DeValue::Array(_) => None,
                part => text_of(part).filter(|text| !text.contains(',')),
            };
            Some(parts.iter().map(text).collect::<Option<Vec<_>>>()?.join(","))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{ALLOW_HOST, AUTOSTART, LISTEN, MAX_MEMORY, THREADS};
    use super::*;

    #[test]
    fn values_become_texts_with_their_lines() {
        let text = "# my machine\nmax_memory = \"4GiB\"\nthreads = 2 # of 4\n\nautostart = false\nallow_host = [\"a\", 'b.c']\nlisten = ''\n";
        let found = parse(text).unwrap().settings;
        let listed: Vec<_> = found.iter().map(|found| (*found.setting, found.value.as_str(), found.line)).collect();
        let expected = [
            (MAX_MEMORY, "4GiB", 2),
            (THREADS, "2", 3),
            (AUTOSTART, "false", 5),
            (ALLOW_HOST, "a,b.c", 6),
            (LISTEN, "", 7),
        ];
        assert_eq!(listed, expected);
        assert_eq!(&text[found[1].span.clone()], "threads = 2");
    }

    #[test]
    fn errors_name_the_line_and_the_key() {
        for (text, field, words) in [
            ("threads = 1979-05-27", Some("threads"), &["line 1", "a text, a number"][..]),
            ("threads = {a = 1}", Some("threads"), &["line 1", "a text, a number"]),
            ("allow_host = ['a,b']", Some("allow_host"), &["line 1"]),
            ("max_memory = [1]", Some("max_memory"), &["line 1", "one value"]),
            ("spill = 'here'", Some("spill"), &["line 1", "absolute"]),
            ("threads = 0x10", Some("threads"), &["line 1"]),
            ("threads = 1\n\nthreads = 2", None, &["line 3"]),
            ("threads = \n", None, &["line 1"]),
        ] {
            let error = parse(text).map(|parsed| parsed.errors.into_iter().next()).unwrap_or_else(Some).unwrap();
            assert_eq!(error.field(), field, "{text:?}: {error}");
            assert!(words.iter().all(|word| error.message().contains(word)), "{text:?}: {error}");
        }
    }

    #[test]
    fn unknown_keys_are_named_and_ignored() {
        for (text, key, words) in [
            (
                "threads = 2\nmax_memroy = '1GiB'\n",
                "max_memroy",
                &["line 2", "did you mean max_memory?", "unset max_memroy"][..],
            ),
            ("threads = 2\n[serve]\nlisten = ''\n", "serve", &["line 2", "not a setting"]),
            ("threads = 2\n\nzzzz = 1", "zzzz", &["line 3", "`cotensor config` lists all"]),
        ] {
            let Parsed { settings, unknown, errors } = parse(text).unwrap();
            assert!(errors.is_empty() && settings.len() == 1 && settings[0].value == "2", "{text:?}");
            assert_eq!(unknown.len(), 1, "{text:?}");
            assert_eq!(unknown[0].key, key);
            assert!(words.iter().all(|word| unknown[0].message.contains(word)), "{unknown:?}");
        }
    }

    #[test]
    fn files_are_bounded_and_regular() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        assert_eq!(ConfigFile::read(&path).unwrap_err().kind(), cotensor_core::ErrorKind::NotFound);
        std::fs::write(&path, vec![b'#'; CONFIG_BYTES_MAX as usize]).unwrap();
        assert!(ConfigFile::read(&path).unwrap().settings.is_empty());
        std::fs::write(&path, vec![b'#'; CONFIG_BYTES_MAX as usize + 1]).unwrap();
        let error = ConfigFile::read(&path).unwrap_err();
        assert!(error.message().contains("at most") && error.file() == Some(&path), "{error}");
        std::fs::write(&path, "max_memroy = '1GiB'\nthreads = 2\n").unwrap();
        let warnings: Vec<String> = ConfigFile::read(&path).unwrap().warnings().collect();
        let start = format!("{}: max_memroy: line 1: ", path.display());
        assert!(warnings.len() == 1 && warnings[0].starts_with(&start), "{warnings:?}");
        std::fs::write(&path, [0xff]).unwrap();
        assert!(ConfigFile::read(&path).unwrap_err().message().contains("UTF-8"));
        assert!(ConfigFile::read(folder.path()).unwrap_err().message().contains("regular"));
        assert!(ConfigFile::read(Path::new("/dev/null")).unwrap().settings.is_empty());
    }

    #[test]
    fn path_comes_from_the_variable_or_the_users_folders() {
        let path = |variables: &[(&str, &str)]| {
            let found = path_in(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
            });
            found.map(|path| path.to_str().unwrap().to_owned())
        };
        let home = ("HOME", "/home/a");
        assert_eq!(path(&[home]).as_deref(), Some("/home/a/.config/cotensor/config.toml"));
        assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "/c")]).as_deref(), Some("/c/cotensor/config.toml"));
        assert_eq!(
            path(&[home, ("XDG_CONFIG_HOME", "c")]).as_deref(),
            Some("/home/a/.config/cotensor/config.toml"),
            "a relative folder is ignored"
        );
        assert_eq!(path(&[home, (CONFIG, "x.toml")]).as_deref(), Some("x.toml"));
        assert_eq!(path(&[]), None);
    }
}
