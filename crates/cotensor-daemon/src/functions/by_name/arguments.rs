//! The arguments of a call: JSON in the form of providers' messages, with tensors that the caller wrote as lists or base64.

use super::elements;
use crate::segment::Upload;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cotensor_client::protocol::provider::TensorRef;
use cotensor_core::{DType, Error, Result};
use cotensor_store::{EmbeddedStore, Holder, Lease, TensorSpec, TensorStore};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The most bytes of a caller's name in an error.
const NAME_SHOWN_BYTES_MAX: usize = 64;

/// The arguments, and leases of their tensors until the call is answered.
pub(super) struct Arguments {
    pub(super) args: Vec<Value>,
    pub(super) kwargs: Map<String, Value>,
    _leases: Vec<Lease>,
}

/// A tensor as callers write it, if it is not a name alone: by `name`, as `data` or as `base64`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTensor {
    name: Option<String>,
    /// A number, or lists of equal lengths.
    data: Option<Value>,
    /// The elements, row-major, least significant byte first.
    base64: Option<String>,
    dtype: Option<String>,
    shape: Option<Vec<usize>>,
}

struct Reader<'a> {
    function: &'a str,
    store: &'a EmbeddedStore,
    holder: &'a Holder,
    leases: Vec<Lease>,
}

impl Arguments {
    /// Reads parameters: a list of positional arguments, or an object of named ones.
    ///
    /// # Errors
    /// `Invalid` with the place of the value as its field; `NotFound` for the name of no tensor; `OverBudget`.
    pub(super) fn read(params: Option<Value>, function: &str, store: &EmbeddedStore, holder: &Holder) -> Result<Self> {
        let mut reader = Reader { function, store, holder, leases: Vec::new() };
        let (args, kwargs) = match params {
            None | Some(Value::Null) => Default::default(),
            Some(Value::Array(list)) => (reader.list(list).map_err(|error| within(&error, "params"))?, Map::new()),
            Some(Value::Object(named)) => {
                (Vec::new(), reader.entries(named).map_err(|error| within(&error, "params"))?)
            }
            Some(_) => return Err(Error::invalid("a list or an object is expected").in_field("params")),
        };
        Ok(Self { args, kwargs, _leases: reader.leases })
    }
}

impl Reader<'_> {
    fn list(&mut self, values: Vec<Value>) -> Result<Vec<Value>> {
        let values = values.into_iter().enumerate();
        values.map(|(at, value)| self.value(value).map_err(|error| within(&error, &at.to_string()))).collect()
    }

    fn entries(&mut self, entries: Map<String, Value>) -> Result<Map<String, Value>> {
        let read = |(name, value): (String, Value)| {
            let value = self.value(value).map_err(|error| within(&error, &name))?;
            Ok((name, value))
        };
        entries.into_iter().map(read).collect()
    }

    /// The parser of the message bounds the depth.
    fn value(&mut self, value: Value) -> Result<Value> {
        match value {
            Value::Array(values) => Ok(Value::Array(self.list(values)?)),
            Value::Object(entries) if entries.len() == 1 && entries.keys().all(|key| key.starts_with('$')) => {
                match entries.into_iter().next() {
                    Some((form, value)) => self.special(&form, value),
                    None => Ok(Value::Null),
                }
            }
            Value::Object(entries) => Ok(Value::Object(self.entries(entries)?)),
            plain => Ok(plain),
        }
    }

    fn special(&mut self, form: &str, value: Value) -> Result<Value> {
        match (form, value) {
            ("$tensor", value) => self.tensor(value),
            ("$tuple", Value::Array(values)) => Ok(json!({"$tuple": self.list(values)?})),
            ("$map", Value::Array(pairs)) => Ok(json!({"$map": self.list(pairs)?})),
            ("$bytes" | "$float", Value::String(text)) => Ok(json!({form: text})),
            (other, _) => {
                let other = shortened(other);
                let message = format!("{other:?} is none of $tensor, $tuple, $map, $bytes and $float, in their forms");
                Err(Error::invalid(message))
            }
        }
    }

    fn tensor(&mut self, value: Value) -> Result<Value> {
        let tensor = match value {
            Value::String(name) => WrittenTensor { name: Some(name), ..WrittenTensor::default() },
            value => serde_json::from_value(value).map_err(|error| Error::invalid(error.to_string()))?,
        };
        let dtype = || tensor.dtype.as_deref().map(|name| name.parse::<DType>().map_err(|e| e.in_field("dtype")));
        let lease = match (&tensor.name, &tensor.data, &tensor.base64) {
            (Some(name), None, None) => self.store.get(name, self.holder)?,
            (None, Some(data), None) => {
                let (dtype, shape, bytes) = elements::parse(data, dtype().transpose()?)?;
                if tensor.shape.as_ref().is_some_and(|given| *given != shape) {
                    return Err(Error::invalid(format!("the data has the shape {shape:?}")).in_field("shape"));
                }
                self.publish(dtype, &shape, &bytes)?
            }
            (None, None, Some(text)) => {
                let missing = |field: &'static str| Error::invalid("this is required with base64").in_field(field);
                let dtype = dtype().transpose()?.ok_or_else(|| missing("dtype"))?;
                let shape = tensor.shape.as_deref().ok_or_else(|| missing("shape"))?;
                let wrong = |_| Error::invalid("this is not base64").in_field("base64");
                self.publish(dtype, shape, &BASE64_STANDARD.decode(text).map_err(wrong)?)?
            }
            _ => return Err(Error::invalid("a tensor has one of name, data and base64")),
        };
        let reference =
            TensorRef { id: lease.id().into(), dtype: lease.dtype().name().to_owned(), shape: lease.shape().to_vec() };
        self.leases.push(lease);
        Ok(json!({"$tensor": reference}))
    }

    /// Publishes a tensor for the time of the call.
    fn publish(&self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Lease> {
        let spec = TensorSpec::new(format!("argument of {} over HTTP", self.function), dtype, shape);
        let layout = spec.layout().map_err(|error| error.in_field("shape"))?;
        let upload = Upload::new(&spec.name, layout.size_bytes() as u64, self.store.grant_growing(&spec)?)?;
        upload.add(bytes, self.store)?.publish(spec, layout, self.store, self.holder)
    }
}

/// The error with a place before its field.
fn within(error: &Error, place: &str) -> Error {
    let place = shortened(place);
    let place = error.field().map_or_else(|| place.to_owned(), |field| format!("{place}.{field}"));
    Error::new(error.kind(), error.message()).in_field(place)
}

/// The start of a name of the caller's, which may be long.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_SHOWN_BYTES_MAX)]
}
