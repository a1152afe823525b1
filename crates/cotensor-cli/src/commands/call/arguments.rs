//! Parses the arguments of a function from the command line.

use cotensor::core::{Error, Kind, Result};
use cotensor::store::{Holder, Retention, TensorStore};
use cotensor_client::ClientStore;
use cotensor_client::hex;
use cotensor_formats::file_error;
use cotensor_formats::{Format, PublishOptions, TensorReader};
use cotensor_functions::{Arguments, Value};
use cotensor_rpc::check_integers;
use serde_json::Value as Json;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Parses arguments. Their tensors are leased from the store, or published there.
pub(super) struct Reader {
    pub(super) store: Arc<ClientStore>,
    pub(super) holder: Holder,
}

impl Reader {
    /// # Errors
    /// `Invalid` with the argument as its field; the errors of files and of the store.
    pub(super) fn read(&self, words: &[String]) -> Result<Arguments> {
        let mut arguments = Arguments::new();
        for word in words {
            match word.split_once('=').filter(|(key, _)| is_key(key)) {
                None => arguments.args.push(self.value(word).map_err(|error| in_argument(error, word))?),
                Some((key, text)) => {
                    let value = self.value(text).map_err(|error| in_argument(error, key))?;
                    if arguments.kwargs.insert(key.to_owned(), value).is_some() {
                        return Err(Error::invalid("given twice").in_field(key));
                    }
                }
            }
        }
        Ok(arguments)
    }

    fn value(&self, word: &str) -> Result<Value> {
        if let Some(tensor) = word.strip_prefix('@') {
            return self.tensor(tensor);
        }
        match serde_json::from_str::<Json>(word) {
            Ok(json) => check_integers(word).and_then(|()| self.json(json)),
            // Text that starts like JSON must be valid JSON.
            Err(error) if word.starts_with(['{', '[', '"']) => Err(Error::invalid(error.to_string())),
            Err(_) => Ok(word.into()),
        }
    }

    fn json(&self, json: Json) -> Result<Value> {
        Ok(match json {
            Json::Null => Value::Null,
            Json::Bool(value) => value.into(),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => whole.into(),
                (None, Some(float)) if !number.is_u64() => float.into(),
                _ => return Err(Error::invalid(format!("{number} has more than 64 bits"))),
            },
            Json::String(text) => text.into(),
            Json::Array(values) => values.into_iter().map(|value| self.json(value)).collect::<Result<Vec<_>>>()?.into(),
            Json::Object(entries) => {
                let special = entries.iter().next().filter(|(name, _)| entries.len() == 1 && name.starts_with('$'));
                match special.map(|(name, value)| (name.as_str(), value)) {
                    Some(("$tensor", Json::String(tensor))) => self.tensor(tensor)?,
                    Some(("$bytes", Json::String(digits))) => {
                        let bytes = hex::decode(digits);
                        Value::Bytes(bytes.ok_or_else(|| Error::invalid("$bytes: hexadecimal digits are expected"))?)
                    }
                    _ => {
                        let entries = entries.into_iter().map(|(name, value)| Ok((name, self.json(value)?)));
                        Value::Map(entries.collect::<Result<_>>()?)
                    }
                }
            }
        })
    }

    /// The tensor called `name`, or the tensor of the file `name`.
    fn tensor(&self, name: &str) -> Result<Value> {
        let (path, inner) = match name.rsplit_once('#') {
            Some((path, inner)) if format(path).is_some() => (path, Some(inner)),
            _ => (name, None),
        };
        match format(path) {
            None => Ok(self.store.get(name, &self.holder)?.into()),
            Some(format) => self.publish_file(Path::new(path), format, inner).map(Value::from),
        }
    }

    fn publish_file(&self, path: &Path, format: Format, inner: Option<&str>) -> Result<cotensor::store::Lease> {
        let file = File::open(path).map_err(|error| file_error("cannot open", &error, path))?;
        let mut reader = TensorReader::open(file, format, None).map_err(|error| error.in_file(path))?;
        let at = match (inner, reader.entries()) {
            (Some(inner), entries) => entries
                .iter()
                .position(|entry| entry.name == inner)
                .ok_or_else(|| Error::not_found(format!("the file has no tensor {inner:?}")).in_file(path))?,
            (None, [_]) => 0,
            (None, entries) => {
                let message = format!("the file has {} tensors; select one by FILE#NAME", entries.len());
                return Err(Error::invalid(message).in_file(path));
            }
        };
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = format!("call/{}/{}", std::process::id(), inner.unwrap_or(&stem));
        let options = PublishOptions {
            name: &name,
            kind: Kind::Other,
            producer: "cotensor call",
            retention: Retention::WhileLeased,
            keep_for: None,
        };
        reader.put(at, &*self.store, &self.holder, &options).map_err(|error| error.in_file(path))
    }
}

/// The format of a file with a self-describing format; `None` for the name of a tensor.
fn format(path: &str) -> Option<Format> {
    Format::of(Path::new(path)).ok().filter(|format| *format != Format::Raw)
}

fn is_key(key: &str) -> bool {
    let mut bytes = key.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Adds the argument as the error's field, unless the error has a field.
fn in_argument(error: Error, word: &str) -> Error {
    if error.field().is_some() { error } else { error.in_field(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_file_formats_are_recognised() {
        for (word, key) in [("a=1", true), ("_x9=", true), ("9=9", false), ("a b=c", false), ("=", false)] {
            assert_eq!(word.split_once('=').is_some_and(|(key, _)| is_key(key)), key, "{word}");
        }
        assert_eq!(format("a/b.npy"), Some(Format::Npy));
        assert_eq!(format("b.safetensors"), Some(Format::Safetensors));
        assert_eq!((format("bert/layer.0"), format("x.raw"), format("npy")), (None, None, None));
    }
}
