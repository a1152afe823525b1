//! Encodes values as JSON and decodes them. [`protocol::provider`](cotensor_client::protocol::provider) describes the encoding.

use crate::allocator::TensorAllocator;
use crate::arena::ConnectionArena;
use crate::value::{Arguments, Value};
use cotensor_client::ClientStore;
use cotensor_client::hex;
use cotensor_client::protocol::provider::{ArenaRange, ArenaTensorRef, ObjectRef, TensorRef};
use cotensor_core::{DType, Error, Result};
use cotensor_rpc::FRAME_BYTES_MAX;
use cotensor_rpc::TENSORS_INSTEAD;
use cotensor_store::{BlobSpec, CopyReason, Holder, Lease, TensorSpec, TensorStore};
use serde_json::{Map, Value as Json, json};
use std::sync::Arc;

/// The deepest nesting of values. A value that contains itself exceeds it.
const DEPTH_MAX: usize = 64;
/// The most values in one message.
const VALUES_MAX: usize = 1 << 20;
/// The most tensors in one message. Each may need a request to the daemon.
const TENSORS_MAX: usize = 4096;
/// Longer byte strings and texts are sent as tensors.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// One end of a connection between a caller and a provider: resolves the references in messages.
pub(crate) trait CodecContext {
    /// The store of this end.
    fn store(&self) -> &ClientStore;
    /// The holder of leases on decoded tensors.
    fn holder(&self) -> &Holder;
    /// The connection's arena for small tensors.
    fn arena(&self) -> &Arc<ConnectionArena>;
    /// Allocates tensors for long byte strings and texts.
    fn allocator(&self) -> TensorAllocator;
    /// The reference of an object.
    fn reference_to(&self, object: &Value) -> Result<ObjectRef>;
    /// The object of a reference.
    fn resolve(&self, object: ObjectRef) -> Result<Value>;
}

/// The tensors of a message, which stay leased until the other end has leased them.
#[derive(Default)]
pub(crate) struct SentTensors {
    /// Whether the message has tensors of the store.
    pub(crate) has_published: bool,
    /// Leases that were made for the message.
    pub(crate) leases: Vec<Lease>,
    /// Ranges of the arena.
    pub(crate) ranges: Vec<ArenaRange>,
}

/// Enforces the limits of one message, and collects its tensors.
#[derive(Default)]
struct Message {
    values: usize,
    tensors: usize,
    /// A lower bound of the message's size.
    bytes: usize,
    sent: SentTensors,
}

impl Message {
    fn value(&mut self, depth: usize) -> Result<()> {
        self.values += 1;
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!("values are nested deeper than {DEPTH_MAX} levels")));
        }
        if self.values > VALUES_MAX {
            return Err(Error::invalid(format!("more than {VALUES_MAX} values in one message: {TENSORS_INSTEAD}")));
        }
        Ok(())
    }

    fn text(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes;
        if self.bytes > FRAME_BYTES_MAX {
            let message = format!("values of more than {FRAME_BYTES_MAX} bytes in one message: {TENSORS_INSTEAD}");
            return Err(Error::unsupported(message));
        }
        Ok(())
    }

    fn tensor(&mut self) -> Result<()> {
        self.tensors += 1;
        if self.tensors > TENSORS_MAX {
            return Err(Error::invalid(format!("more than {TENSORS_MAX} tensors in one message")));
        }
        Ok(())
    }
}

/// Encodes a value.
pub(crate) fn encode(value: &Value, context: &dyn CodecContext) -> Result<(Json, SentTensors)> {
    let mut message = Message::default();
    let json = write(value, context, 0, &mut message);
    Ok((json.inspect_err(|_| context.arena().reclaim(&message.sent.ranges))?, message.sent))
}

/// Encoded arguments.
pub(crate) struct EncodedArguments {
    /// By position.
    pub(crate) args: Vec<Json>,
    /// By name.
    pub(crate) kwargs: Map<String, Json>,
    /// Kept until the call is answered.
    pub(crate) sent: SentTensors,
}

/// Encodes arguments.
pub(crate) fn encode_arguments(arguments: &Arguments, context: &dyn CodecContext) -> Result<EncodedArguments> {
    let mut message = Message::default();
    let written = write_arguments(arguments, context, &mut message);
    let (args, kwargs) = written.inspect_err(|_| context.arena().reclaim(&message.sent.ranges))?;
    Ok(EncodedArguments { args, kwargs, sent: message.sent })
}

fn write_arguments(
    arguments: &Arguments,
    context: &dyn CodecContext,
    message: &mut Message,
) -> Result<(Vec<Json>, Map<String, Json>)> {
    let args = arguments.args.iter().enumerate().map(|(position, value)| {
        write(value, context, 0, message).map_err(|error| error.in_field(format!("argument {position}")))
    });
    let args = args.collect::<Result<_>>()?;
    let kwargs = arguments.kwargs.iter().map(|(name, value)| {
        let value = write(value, context, 0, message).map_err(|error| error.in_field(name.as_str()))?;
        Ok((name.clone(), value))
    });
    Ok((args, kwargs.collect::<Result<_>>()?))
}

fn write(value: &Value, context: &dyn CodecContext, depth: usize, message: &mut Message) -> Result<Json> {
    message.value(depth)?;
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(number) => json!(number),
        Value::Float(number) if number.is_finite() => json!(number),
        Value::Float(number) if number.is_nan() => json!({"$float": "nan"}),
        Value::Float(number) => json!({"$float": if *number > 0.0 { "inf" } else { "-inf" }}),
        Value::String(text) if text.len() > INLINE_BYTES_MAX => {
            json!({"$text": write_as_tensor(text.as_bytes(), context, message)?})
        }
        Value::String(text) => {
            message.text(text.len())?;
            json!(text)
        }
        Value::Bytes(bytes) if bytes.len() > INLINE_BYTES_MAX => {
            json!({"$bytes": write_as_tensor(bytes, context, message)?})
        }
        Value::Bytes(bytes) => {
            message.text(2 * bytes.len())?;
            json!({"$bytes": hex::encode(bytes)})
        }
        Value::List(values) => Json::Array(write_all(values, context, depth, message)?),
        Value::Tuple(values) => json!({"$tuple": write_all(values, context, depth, message)?}),
        Value::Map(values) => {
            let mut entries = Vec::with_capacity(values.len());
            for (name, value) in values {
                message.text(name.len())?;
                entries.push((name.clone(), write(value, context, depth + 1, message)?));
            }
            match values.keys().any(|name| name.starts_with('$')) {
                true => json!({"$map": entries}),
                false => Json::Object(entries.into_iter().collect()),
            }
        }
        Value::Tensor(lease) => write_tensor(lease, context, message)?,
        Value::Object(_) | Value::Remote(_) => json!({"$object": context.reference_to(value)?}),
    })
}

fn write_tensor(lease: &Lease, context: &dyn CodecContext, message: &mut Message) -> Result<Json> {
    message.tensor()?;
    match context.arena().reference(lease) {
        Some(reference) => {
            message.sent.ranges.push(reference.range);
            Ok(json!({"$arena": reference}))
        }
        None => Ok(json!({"$tensor": reference(lease, context, &mut message.sent)?})),
    }
}

/// Encodes a long byte string as a tensor.
fn write_as_tensor(bytes: &[u8], context: &dyn CodecContext, message: &mut Message) -> Result<Json> {
    let name = format!("data of {}", context.holder().name());
    let spec = TensorSpec::new(&name[..name.floor_char_boundary(256)], DType::U8, &[bytes.len()]);
    let mut reservation = context.allocator().reserve(spec, context.holder())?;
    reservation.write(bytes, CopyReason::Put)?;
    let lease = reservation.publish()?;
    let json = write_tensor(&lease, context, message)?;
    message.sent.leases.push(lease);
    Ok(json)
}

/// Decodes a byte string that [`write_as_tensor`] encoded. Copies the bytes before parsing them: the sender may still write them.
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

/// A reference to a tensor of the daemon's store. A tensor leased over another connection to the daemon is leased over this one;
/// a tensor of another arena is copied into the store.
fn reference(lease: &Lease, context: &dyn CodecContext, sent: &mut SentTensors) -> Result<TensorRef> {
    sent.has_published = true;
    let to_reference = |lease: &Lease| TensorRef {
        id: lease.id().into(),
        dtype: lease.dtype().name().to_owned(),
        shape: lease.shape().to_vec(),
    };
    if context.store().holds(lease) {
        return Ok(to_reference(lease));
    }
    let own = match context.store().join(lease, context.holder()) {
        Some(own) => own,
        None => context.store().publish_private(lease, context.holder())?,
    };
    let reference = to_reference(&own);
    sent.leases.push(own);
    Ok(reference)
}

fn write_all(values: &[Value], context: &dyn CodecContext, depth: usize, message: &mut Message) -> Result<Vec<Json>> {
    values.iter().map(|value| write(value, context, depth + 1, message)).collect()
}

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

/// Collects all values, or returns the first error. Decodes every value even after an error, so that all arena ranges are
/// released.
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
    lease.view_as(&BlobSpec { device: lease.device(), hash, dtype, shape: wanted.shape.clone(), producer })
}
