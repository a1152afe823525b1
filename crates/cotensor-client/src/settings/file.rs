//! The configuration file: TOML with one key for each setting, and no tables.

use super::table::{ALLOW_HOST, CACHE, CONFIG, LOG, MAX_DEVICE_MEMORY, SETTINGS, SOCKET, SPILL, Setting, TOKEN_FILE};
use cotensor_core::{Error, Result};
use std::ffi::OsString;
use std::fs::File;
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
    pub(super) text: String,
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
    /// `Invalid` for wrong TOML, an unknown key, a value that is no text, number, truth value or list of these, and a file that is
    /// too long or not regular; `NotFound`, `Io`. The error names the file, the line and the key.
    pub fn load() -> Result<Self> {
        let Some(path) = config_path() else { return Ok(Self::default()) };
        let named = std::env::var_os(CONFIG).is_some_and(|value| !value.is_empty());
        match Self::read(&path) {
            Err(error) if !named && error.kind() == cotensor_core::ErrorKind::NotFound => {
                Ok(Self { path: Some(path), ..Self::default() })
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
        let text = read_bounded(path).map_err(|error| error.in_file(path))?;
        let settings = parse(&text).map_err(|error| error.in_file(path))?;
        Ok(Self { path: Some(path.to_path_buf()), settings, text })
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

fn read_bounded(path: &Path) -> Result<String> {
    // A pipe would block; /dev/null is an empty file.
    let found = std::fs::metadata(path).map_err(|error| Error::io("cannot read", &error))?;
    if !found.is_file() && path != Path::new("/dev/null") {
        return Err(Error::invalid("the configuration is not a regular file"));
    }
    let file = File::open(path).map_err(|error| Error::io("cannot read", &error))?;
    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| Error::io("cannot read", &error))?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(Error::invalid(format!("a configuration has at most {CONFIG_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Error::invalid("not UTF-8 text"))
}

pub(super) fn parse(text: &str) -> Result<Vec<FileSetting>> {
    let line = |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
    let table = DeTable::parse(text).map_err(|error| {
        let line = line(error.span().map_or(0, |span| span.start));
        Error::invalid(format!("line {line}: {}", error.message()))
    })?;
    let mut settings = Vec::new();
    for (key, value) in table.get_ref() {
        let (name, line) = (key.get_ref().as_ref(), line(key.span().start));
        let setting = of_key(name).map_err(|error| error.prefixed(format_args!("line {line}")))?;
        let value_text = text_of(value.get_ref()).ok_or_else(|| {
            let found = value.get_ref().type_str();
            let message = format!("line {line}: {found}, which is no text, number, truth value or list of these");
            Error::invalid(message).in_field(name)
        })?;
        if matches!(value.get_ref(), DeValue::Array(_)) && !LISTS.contains(setting) {
            return Err(Error::invalid(format!("line {line}: a list, where one value is expected")).in_field(name));
        }
        if PATHS.contains(setting) && !Path::new(&value_text).is_absolute() {
            let message = format!("line {line}: {value_text:?} is not an absolute path");
            return Err(Error::invalid(message).in_field(name));
        }
        let span = key.span().start..value.span().end;
        settings.push(FileSetting { setting, value: value_text, line, span });
    }
    settings.sort_by_key(|setting| setting.span.start);
    Ok(settings)
}

/// The setting with a key in the configuration file.
///
/// # Errors
/// `Invalid` with the most similar key.
pub fn of_key(key: &str) -> Result<&'static Setting> {
    Setting::of_key(key).ok_or_else(|| unknown(key))
}

/// The error for a name that is no setting's, with the most similar one.
fn unknown(name: &str) -> Error {
    let keys = SETTINGS.iter().map(Setting::key);
    let similar = keys.map(|key| (strsim::jaro_winkler(&key, name), key));
    let nearest = similar.filter(|(by, _)| *by >= SIMILARITY_MIN).max_by(|(a, _), (b, _)| a.total_cmp(b));
    let hint = match nearest {
        Some((_, key)) => format!("did you mean {key}?"),
        None => "`cotensor config` lists all".to_owned(),
    };
    let shown: String = name.chars().take(64).collect();
    Error::invalid(format!("not a setting; {hint}")).in_field(shown)
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
        let found = parse(text).unwrap();
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
            ("threads = 2\nmax_memroy = '1GiB'\n", Some("max_memroy"), &["line 2", "did you mean max_memory?"][..]),
            ("[serve]\nlisten = ''\n", Some("serve"), &["line 1", "not a setting"]),
            ("\nzzzz = 1", Some("zzzz"), &["line 2", "`cotensor config` lists all"]),
            ("threads = 1979-05-27", Some("threads"), &["line 1", "no text, number"]),
            ("threads = {a = 1}", Some("threads"), &["line 1", "no text, number"]),
            ("allow_host = ['a,b']", Some("allow_host"), &["line 1"]),
            ("max_memory = [1]", Some("max_memory"), &["line 1", "one value"]),
            ("spill = 'here'", Some("spill"), &["line 1", "absolute"]),
            ("threads = 0x10", Some("threads"), &["line 1"]),
            ("threads = 1\n\nthreads = 2", None, &["line 3"]),
            ("threads = \n", None, &["line 1"]),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.field(), field, "{text:?}: {error}");
            assert!(words.iter().all(|word| error.message().contains(word)), "{text:?}: {error}");
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
