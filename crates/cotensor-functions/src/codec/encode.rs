//! Values as JSON.

use super::context::{CodecContext, SentTensors};
use super::message::Message;
use crate::value::{Arguments, Value};
use cotensor_client::hex;
use cotensor_client::protocol::provider::TensorRef;
use cotensor_core::{DType, Result};
use cotensor_store::{CopyReason, Lease, TensorSpec};
use serde_json::{Map, Value as Json, json};

/// Longer byte strings and texts are sent as tensors.
const INLINE_BYTES_MAX: usize = 64 << 10;

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
            if values.keys().any(|name| name.starts_with('$')) {
                json!({"$map": entries})
            } else {
                Json::Object(entries.into_iter().collect())
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

/// A reference to a tensor of the daemon's store. A tensor leased over another connection to the daemon is leased over
/// this one; a tensor of another arena is copied into the store.
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
