//! Validated arguments of the model functions, and values for their results.

use cotensor_core::{DType, Error, Result};
use cotensor_functions::{Arguments, Value};
use cotensor_model::pipeline::Inputs;
use serde_json::{Map, Value as Json};
use std::path::Path;

/// Arguments by name. Positional arguments take the names in order.
pub(super) struct NamedArguments<'a> {
    names: Vec<&'a str>,
    arguments: &'a Arguments,
}

impl<'a> NamedArguments<'a> {
    /// # Errors
    /// `Invalid` for an unknown argument, and for one given twice.
    pub(super) fn new(arguments: &'a Arguments, names: &[&'a str]) -> Result<Self> {
        if arguments.args.len() > names.len() {
            let message =
                format!("{} positional arguments; at most {} are expected", arguments.args.len(), names.len());
            return Err(Error::invalid(message));
        }
        if let Some(unknown) = arguments.kwargs.keys().find(|name| !names.contains(&name.as_str())) {
            let message = format!("unknown argument; expected: {}", names.join(", "));
            return Err(Error::invalid(message).in_field(unknown.as_str()));
        }
        let by_position = &names[..arguments.args.len()];
        if let Some(twice) = by_position.iter().find(|name| arguments.kwargs.contains_key(**name)) {
            return Err(Error::invalid("given by position and by name").in_field(*twice));
        }
        Ok(Self { names: names.to_vec(), arguments })
    }

    /// An optional argument. Null counts as absent.
    pub(super) fn optional(&self, name: &str) -> Option<&'a Value> {
        let by_position = self.names.iter().position(|known| *known == name);
        let found = by_position.and_then(|at| self.arguments.args.get(at));
        found.or_else(|| self.arguments.kwargs.get(name)).filter(|value| !matches!(value, Value::Null))
    }

    /// # Errors
    /// `Invalid` for a missing argument.
    pub(super) fn required(&self, name: &str) -> Result<&'a Value> {
        self.optional(name).ok_or_else(|| Error::invalid("this argument is missing").in_field(name))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        let text = self.optional(name).map(|value| value.as_str().map(str::to_owned));
        text.transpose().map_err(|error| error.in_field(name))
    }

    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>> {
        let Some(value) = self.optional(name) else { return Ok(Vec::new()) };
        let texts =
            value.as_list().and_then(|texts| texts.iter().map(|text| text.as_str().map(str::to_owned)).collect());
        texts.map_err(|error: Error| error.in_field(name))
    }

    pub(super) fn count(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.optional(name) else { return Ok(None) };
        let count = value
            .as_int()
            .and_then(|number| usize::try_from(number).map_err(|_| Error::invalid(format!("{number} is not a count"))));
        count.map(Some).map_err(|error| error.in_field(name))
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>> {
        let flag = self.optional(name).map(Value::as_bool);
        flag.transpose().map_err(|error| error.in_field(name))
    }

    /// Those of the arguments `names` that are given, as JSON.
    ///
    /// # Errors
    /// `Invalid` for an argument that JSON does not have.
    pub(super) fn options(&self, names: &[&str]) -> Result<Map<String, Json>> {
        let given = names.iter().filter_map(|name| Some((*name, self.optional(name)?)));
        given.map(|(name, value)| Ok((name.to_owned(), json(value).map_err(|error| error.in_field(name))?))).collect()
    }

    /// The given text, image and audio.
    pub(super) fn inputs(&self) -> Result<Inputs> {
        let mut inputs = Inputs::default();
        if let Some(text) = self.text("text")? {
            inputs = inputs.with_text(text);
        }
        inputs = match self.file("image")? {
            None => inputs,
            Some(File::Path(path)) => inputs.with_image(path)?,
            Some(File::Bytes(bytes)) => inputs.with_image_bytes(bytes.to_vec())?,
        };
        match self.file("audio")? {
            None => Ok(inputs),
            Some(File::Path(path)) => inputs.with_audio(path),
            Some(File::Bytes(bytes)) => inputs.with_audio_bytes(bytes.to_vec()),
        }
    }

    fn file(&self, name: &str) -> Result<Option<File<'a>>> {
        let Some(value) = self.optional(name) else { return Ok(None) };
        let wrong = |message: &str| Error::invalid(message).in_field(name);
        Ok(Some(match value {
            Value::String(path) => File::Path(absolute(path, name)?),
            Value::Bytes(bytes) => File::Bytes(bytes),
            Value::Tensor(lease) if lease.dtype() == DType::U8 && lease.layout().is_contiguous() => {
                File::Bytes(lease.bytes().ok_or_else(|| wrong("the tensor is not in host memory"))?)
            }
            _ => return Err(wrong("a path, bytes or a tensor of uint8 is expected")),
        }))
    }
}

/// A file argument.
enum File<'a> {
    Path(&'a Path),
    Bytes(&'a [u8]),
}

/// Checks that a path is absolute: processes have different working directories.
///
/// # Errors
/// `Invalid` for a relative one.
pub(super) fn absolute<'a>(path: &'a str, field: &str) -> Result<&'a Path> {
    let path = Path::new(path);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(Error::invalid("an absolute path is expected: the provider has another working directory").in_field(field))
    }
}

/// A map of these entries.
pub(super) fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Converts a value without tensors, bytes and objects to JSON.
///
/// # Errors
/// `Invalid` for another value.
fn json(value: &Value) -> Result<Json> {
    Ok(match value {
        Value::Bool(truth) => (*truth).into(),
        Value::Int(number) => (*number).into(),
        Value::Float(number) if number.is_finite() => (*number).into(),
        Value::String(text) => text.as_str().into(),
        Value::List(values) | Value::Tuple(values) => Json::Array(values.iter().map(json).collect::<Result<_>>()?),
        other => {
            let expected = "text, a finite number, a truth value or a list is expected";
            return Err(Error::invalid(format!("{expected}, not {}", other.kind())));
        }
    })
}

/// Converts JSON without tensors to a value.
///
/// # Errors
/// `Unsupported` for a number beyond 64 bits.
pub(super) fn plain(json: Json) -> Result<Value> {
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::Float(number),
            _ => return Err(Error::unsupported(format!("{number} does not fit into 64 bits"))),
        },
        Json::String(text) => Value::String(text),
        Json::Array(values) => Value::List(values.into_iter().map(plain).collect::<Result<_>>()?),
        Json::Object(entries) => {
            Value::Map(entries.into_iter().map(|(name, value)| Ok((name, plain(value)?))).collect::<Result<_>>()?)
        }
    })
}
