//! Values from JSON.

use super::context::CodecContext;
use super::message::Message;
use crate::value::{Arguments, Value};
use cotensor_client::hex;
use cotensor_client::protocol::provider::{ArenaTensorRef, TensorRef};
use cotensor_core::{DType, Error, Result};
use cotensor_store::{BlobSpec, Lease, TensorStore};
use serde_json::{Map, Value as Json};
use std::sync::Arc;

/// Decodes a value. Its tensors are leased to this end's holder.
pub(crate) fn decode(json: Json, context: &dyn CodecContext) -> Result<Value> {
    read(json, context, 0, &mut Message::default())
}

/// Decodes arguments. Their tensors are leased to this end's holder.
pub(crate) fn decode_arguments(
    args: Vec<Json>,
    kwargs: Map<String, Json>,
    context: &dyn CodecContext,
) -> Result<Arguments> {
    let mut message = Message::default();
    let args = collect_all(args.into_iter().enumerate().map(|(position, value)| {
        read(value, context, 0, &mut message).map_err(|error| error.in_field(format!("argument {position}")))
    }));
    let kwargs = collect_all(kwargs.into_iter().map(|(name, value)| {
        let value = read(value, context, 0, &mut message).map_err(|error| error.in_field(name.as_str()))?;
        Ok((name, value))
    }));
    Ok(Arguments { args: args?, kwargs: kwargs? })
}

/// Collects all values, or returns the first error. Decodes every value even after an error, so that all arena ranges
/// are released.
fn collect_all<T, C: FromIterator<T>>(read: impl Iterator<Item = Result<T>>) -> Result<C> {
    let mut failed = None;
    let read = read.filter_map(|value| value.map_err(|error| failed = failed.take().or(Some(error))).ok()).collect();
    failed.map_or(Ok(read), Err)
}

fn read(json: Json, context: &dyn CodecContext, depth: usize, message: &mut Message) -> Result<Value> {
    message.value(depth)?;
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(float)) if !is_integer(&number.to_string()) => Value::Float(float),
            _ => return Err(Error::invalid(format!("{number} does not fit into 64 bits"))),
        },
        Json::String(text) => Value::String(text),
        Json::Array(values) => Value::List(read_all(values, context, depth, message)?),
        Json::Object(mut entries) => {
            let special = entries.keys().find(|name| name.starts_with('$')).cloned();
            match special {
                Some(name) if entries.len() == 1 => {
                    let inner = entries.remove(&name).unwrap_or_default();
                    return read_special(&name, inner, context, depth, message);
                }
                Some(name) => return Err(unknown(&name)),
                None => {
                    let entries =
                        entries.into_iter().map(|(name, value)| Ok((name, read(value, context, depth + 1, message)?)));
                    Value::Map(collect_all(entries)?)
                }
            }
        }
    })
}

fn read_all(values: Vec<Json>, context: &dyn CodecContext, depth: usize, message: &mut Message) -> Result<Vec<Value>> {
    collect_all(values.into_iter().map(|value| read(value, context, depth + 1, message)))
}

/// Whether the text is an integer. Integers beyond `i64` are errors: a float would lose digits.
fn is_integer(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn unknown(name: &str) -> Error {
    Error::invalid(format!("unknown tag {name:?} in an object"))
}

fn read_special(
    name: &str,
    inner: Json,
    context: &dyn CodecContext,
    depth: usize,
    message: &mut Message,
) -> Result<Value> {
    let malformed = |error: serde_json::Error| Error::invalid(format!("{name}: {error}"));
    match (name, inner) {
        ("$tensor", inner) => {
            message.tensor()?;
            let wanted: TensorRef = serde_json::from_value(inner).map_err(malformed)?;
            Ok(Value::Tensor(Arc::new(lease(&wanted, context)?)))
        }
        ("$arena", inner) => {
            message.tensor()?;
            let reference: ArenaTensorRef = serde_json::from_value(inner).map_err(malformed)?;
            Ok(Value::Tensor(Arc::new(context.arena().lease(&reference, context.store(), context.holder())?)))
        }
        ("$tuple", Json::Array(values)) => Ok(Value::Tuple(read_all(values, context, depth, message)?)),
        ("$object", inner) => context.resolve(serde_json::from_value(inner).map_err(malformed)?),
        ("$bytes", Json::String(digits)) => {
            let bytes =
                hex::decode(&digits).ok_or_else(|| Error::invalid("$bytes: hexadecimal digits are expected"))?;
            Ok(Value::Bytes(bytes))
        }
        ("$bytes", inner @ Json::Object(_)) => {
            Ok(Value::Bytes(read_from_tensor(name, inner, context, depth, message)?))
        }
        ("$text", inner @ Json::Object(_)) => {
            let bytes = read_from_tensor(name, inner, context, depth, message)?;
            Ok(Value::String(String::from_utf8(bytes).map_err(|_| Error::corrupt("$text: invalid UTF-8"))?))
        }
        ("$float", Json::String(text)) => match text.as_str() {
            "nan" => Ok(Value::Float(f64::NAN)),
            "inf" => Ok(Value::Float(f64::INFINITY)),
            "-inf" => Ok(Value::Float(f64::NEG_INFINITY)),
            _ => Err(Error::invalid("$float: nan, inf or -inf is expected")),
        },
        ("$map", inner) => {
            let entries: Vec<(String, Json)> = serde_json::from_value(inner).map_err(malformed)?;
            let entries =
                entries.into_iter().map(|(name, value)| Ok((name, read(value, context, depth + 1, message)?)));
            Ok(Value::Map(collect_all(entries)?))
        }
        _ => Err(unknown(name)),
    }
}

/// Leases a tensor of the store with the dtype and shape of the reference.
fn lease(wanted: &TensorRef, context: &dyn CodecContext) -> Result<Lease> {
    let dtype: DType = wanted.dtype.parse()?;
    let lease = context.store().lease(wanted.id.into(), context.holder())?;
    if lease.dtype() == dtype && lease.shape() == wanted.shape {
        return Ok(lease);
    }
    // The sender viewed the tensor with another dtype or shape.
    let (hash, producer) = (lease.identity(), lease.producer().to_owned());
    lease.view_as(&BlobSpec {
        device: lease.device(),
        hash,
        dtype,
        shape: wanted.shape.clone(),
        producer,
        label: String::new(),
        metadata: None,
    })
}

/// Decodes a byte string that was encoded as a tensor. Copies the bytes before parsing them: the sender may still write
/// them.
fn read_from_tensor(
    name: &str,
    inner: Json,
    context: &dyn CodecContext,
    depth: usize,
    message: &mut Message,
) -> Result<Vec<u8>> {
    match read(inner, context, depth, message)? {
        Value::Tensor(lease) if lease.dtype() == DType::U8 => {
            let bytes = lease.bytes().map(<[u8]>::to_vec);
            bytes.ok_or_else(|| Error::unsupported(format!("{name}: the tensor is not in host memory")))
        }
        _ => Err(Error::invalid(format!("{name}: a tensor of bytes is expected"))),
    }
}
