//! Changes one setting of a configuration file, and keeps the rest of its text.

use super::file::{ConfigFile, of_key, parse};
use super::table::Setting;
use cotensor_core::{Error, ErrorKind, Result};
use std::io::Write;
use std::path::Path;

/// Sets the setting with this key in the file at `path`, or removes it without a value. Makes the file and its folder if they are
/// missing, and replaces the file at once. Returns whether the file changed.
///
/// # Errors
/// `Invalid` for an unknown key and for a file with errors; `Io`.
pub fn change(path: &Path, key: &str, value: Option<&str>) -> Result<bool> {
    let setting = of_key(key)?;
    // A device such as /dev/null is read as an empty file, and must not be replaced by one.
    if path.exists() && !path.is_file() {
        return Err(Error::invalid("not a regular file: COTENSOR_CONFIG names another").in_file(path));
    }
    let file = match ConfigFile::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => ConfigFile::default(),
        read => read?,
    };
    let changed = changed(&file, setting, value)?;
    if changed == file.text {
        return Ok(false);
    }
    replace(path, &changed).map_err(|error| Error::io("cannot write", &error).in_file(path))?;
    Ok(true)
}

/// The text with the change.
fn changed(file: &ConfigFile, setting: &Setting, value: Option<&str>) -> Result<String> {
    let mut text = file.text.clone();
    let entry = value.map(|value| format!("{} = {}", setting.key(), toml::Value::from(value)));
    match (file.get(setting), entry) {
        (Some(found), Some(entry)) => text.replace_range(found.span.clone(), &entry),
        (Some(found), None) => {
            // The line, with its comment.
            let start = text[..found.span.start].rfind('\n').map_or(0, |at| at + 1);
            let end = text[found.span.end..].find('\n').map_or(text.len(), |at| found.span.end + at + 1);
            text.replace_range(start..end, "");
        }
        (None, Some(entry)) => {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&entry);
            text.push('\n');
        }
        (None, None) => {}
    }
    parse(&text)?;
    Ok(text)
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
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other file is left");
    }
}
