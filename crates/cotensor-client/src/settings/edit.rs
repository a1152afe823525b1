//! Changes one setting of a configuration file, and keeps the rest of its text.

use super::file::{ConfigFile, of_key, parse, read_bounded};
use super::table::Setting;
use cotensor_core::{Error, ErrorKind, Result};
use std::io::Write;
use std::path::Path;
use toml::de::DeTable;

/// Sets the setting with this key in the file at `path`, or removes it without a value. Makes the file and its folder if they are
/// missing, and replaces the file at once. Returns whether the file changed. A key is removed also from a file with errors, and
/// also if it belongs to no setting, so that the file can be repaired.
///
/// # Errors
/// `Invalid` for an unknown key, and for a file with errors in which a key is set; `Io`.
pub fn change(path: &Path, key: &str, value: Option<&str>) -> Result<bool> {
    // A device such as /dev/null is read as an empty file, and must not be replaced by one.
    if path.exists() && !path.is_file() {
        return Err(Error::invalid("not a regular file: COTENSOR_CONFIG names another").in_file(path));
    }
    let text = match read_bounded(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.map_err(|error| error.in_file(path))?,
    };
    let changed = match value {
        Some(value) => {
            let setting = of_key(key)?;
            let file = if text.is_empty() { ConfigFile::default() } else { ConfigFile::read(path)? };
            with(&file, setting, value)?
        }
        None => without(&text, key),
    };
    if changed == text {
        // An unknown key that the file does not have is a mistake.
        return of_key(key).map(|_| false);
    }
    replace(path, &changed).map_err(|error| Error::io("cannot write", &error).in_file(path))?;
    Ok(true)
}

/// The text with the setting.
fn with(file: &ConfigFile, setting: &Setting, value: &str) -> Result<String> {
    let mut text = file.text.clone();
    let entry = format!("{} = {}", setting.key(), toml::Value::from(value));
    match file.get(setting) {
        Some(found) => text.replace_range(found.span.clone(), &entry),
        None => {
            // Before the first table, which would contain it.
            let at = text.lines().position(|line| line.trim_start().starts_with('['));
            let mut lines: Vec<&str> = text.lines().collect();
            lines.insert(at.unwrap_or(lines.len()), &entry);
            text = lines.join("\n") + "\n";
        }
    }
    parse(&text)?;
    Ok(text)
}

/// The text without a key: the lines of its value, with their comments, or of its table. In wrong TOML, the lines that begin with
/// the key.
fn without(text: &str, key: &str) -> String {
    let Ok(table) = DeTable::parse(text) else {
        let begins =
            |line: &&str| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
        return text.split_inclusive('\n').filter(|line| !begins(line)).collect();
    };
    let Some((found, value)) = table.get_ref().iter().find(|(found, _)| found.get_ref().as_ref() == key) else {
        return text.to_owned();
    };
    let start = text[..found.span().start].rfind('\n').map_or(0, |at| at + 1);
    let is_table = text[start..].trim_start().starts_with('[');
    let end_of_line = |from: usize| text[from..].find('\n').map_or(text.len(), |at| from + at + 1);
    let mut end = end_of_line(value.span().end.max(found.span().end));
    while is_table && end < text.len() && !text[end..].trim_start().starts_with('[') {
        end = end_of_line(end);
    }
    format!("{}{}", &text[..start], &text[end..])
}

fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    // A linked file stays a link.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    let mut new = path.clone().into_os_string();
    new.push(format!(".new.{}", std::process::id()));
    let written = std::fs::File::create_new(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| std::fs::rename(&new, &path)).inspect_err(|_| drop(std::fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_keeps_the_rest_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/config.toml");
        let text = || std::fs::read_to_string(&path).unwrap();
        assert!(!change(&path, "threads", None).unwrap() && !path.exists());
        assert!(change(&path, "spill", Some("/a \"b\"")).unwrap());
        assert_eq!(ConfigFile::read(&path).unwrap().value(&super::super::SPILL), Some("/a \"b\""));
        std::fs::write(&path, "# mine\nthreads = 2 # two\nmax_memory = \"1GiB\"").unwrap();
        assert!(change(&path, "threads", Some("3")).unwrap());
        assert_eq!(text(), "# mine\nthreads = \"3\" # two\nmax_memory = \"1GiB\"");
        assert!(change(&path, "engine", Some("rten")).unwrap());
        assert!(change(&path, "threads", None).unwrap());
        assert_eq!(text(), "# mine\nmax_memory = \"1GiB\"\nengine = \"rten\"\n");
        assert!(!change(&path, "engine", Some("rten")).unwrap());

        let error = change(&path, "max_memroy", Some("1")).unwrap_err();
        assert!(error.message().contains("max_memory"), "{error}");
        let error = change(Path::new("/dev/null"), "threads", Some("3")).unwrap_err();
        assert!(error.message().contains("regular"), "{error}");
        std::fs::write(&path, "wrong").unwrap();
        assert_eq!(change(&path, "threads", Some("3")).unwrap_err().file(), Some(path.as_path()));
        assert_eq!(text(), "wrong");
        assert!(!change(&path, "threads", None).unwrap());
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other file is left");
    }

    #[test]
    fn any_key_is_removed_from_a_file_with_errors() {
        for (text, key, left) in [
            ("threads = 2\nmax_memroy = '1GiB' # 1\nengine = 'rten'\n", "max_memroy", "threads = 2\nengine = 'rten'\n"),
            ("threads = 1979-05-27", "threads", ""),
            ("threads = [\nengine = 'rten'\n", "threads", "engine = 'rten'\n"),
            ("threads = 2\n[serve]\nlisten = ''\n\n[b]\nx = 1\n", "serve", "threads = 2\n\n[b]\nx = 1\n"),
            ("threads = [\n 1,\n 2 ]\nspill = '/a'\n", "threads", "spill = '/a'\n"),
        ] {
            assert_eq!(without(text, key), left, "{text:?}");
        }
    }
}
