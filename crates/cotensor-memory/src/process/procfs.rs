//! Reading files of `/proc`.

use cotensor_core::{Error, Result};

/// The text of the file `path`. Bytes that are not UTF-8 are replaced: paths in `maps` may have any bytes.
pub(super) fn read(path: &str) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|error| Error::io("cannot read", &error).in_file(path))?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The value in bytes of the line `NAME   123 kB`; `name` ends with the colon.
pub(super) fn kib_field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| kib_value(line, name))
}

/// The value in bytes of one line `NAME   123 kB`.
pub(super) fn kib_value(line: &str, name: &str) -> Option<u64> {
    let value = line.strip_prefix(name)?.trim().strip_suffix("kB")?;
    value.trim().parse::<u64>().ok()?.checked_mul(1024)
}
