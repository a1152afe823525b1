//! Values as JSON and back. How is said in [`protocol::provider`](cotensor_client::protocol::provider).

use super::lending::Lending;
use super::{Arguments, Outlet, Value};
use cotensor_client::ClientStore;
use cotensor_client::hex;
use cotensor_client::protocol::provider::{LentRange, LentRef, ObjectRef, TensorRef};
use cotensor_core::{DType, Error, Result};
use cotensor_rpc::FRAME_BYTES_MAX;
use cotensor_rpc::TENSORS_INSTEAD;
use cotensor_store::{BlobSpec, CopyReason, Holder, Lease, TensorSpec, TensorStore};
use serde_json::{Map, Value as Json, json};
use std::sync::Arc;

/// How deep values may be nested. A value that contains itself would be deeper.
const DEPTH_MAX: usize = 64;
/// The most values in one message.
const VALUES_MAX: usize = 1 << 20;
/// The most tensors in one message: each is a question to the daemon.
const TENSORS_MAX: usize = 4096;
/// Longer bytes and texts travel as tensors, beside the message.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// One end of a socket between a caller and a provider: what stands behind the handles.
pub(crate) trait Edge {
    /// The store of this end.
    fn store(&self) -> &ClientStore;
    /// Who leases what comes.
    fn holder(&self) -> &Holder;
    /// The small tensors that the two ends lend to each other.
    fn lending(&self) -> &Arc<Lending>;
    /// Where long bytes and texts are written.
    fn outlet(&self) -> Outlet;
    /// The handle of an object.
    fn refer(&self, object: &Value) -> Result<ObjectRef>;
    /// The object of a handle.
    fn resolve(&self, object: ObjectRef) -> Result<Value>;
}

/// What has to stay leased until the other end has leased the tensors of a message itself.
#[derive(Default)]
pub(crate) struct Handed {
    /// Whether there are any, besides those that are lent.
    pub(crate) any: bool,
    /// Those that nobody else leases.
    pub(crate) own: Vec<Lease>,
    /// Those that are lent.
    pub(crate) lent: Vec<LentRange>,
}

/// Counts what passes, so that no message is endless.
#[derive(Default)]
struct Count {
    values: usize,
    tensors: usize,
    /// At least so many bytes has the message.
    bytes: usize,
    handed: Handed,
}

impl Count {
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

/// A value as JSON.
pub(crate) fn encode(value: &Value, edge: &dyn Edge) -> Result<(Json, Handed)> {
    let mut count = Count::default();
    let json = write(value, edge, 0, &mut count);
    Ok((json.inspect_err(|_| edge.lending().take_back(&count.handed.lent))?, count.handed))
}

/// Arguments as JSON.
pub(crate) struct Encoded {
    /// By position.
    pub(crate) args: Vec<Json>,
    /// By name.
    pub(crate) kwargs: Map<String, Json>,
    /// To be kept until the call is answered.
    pub(crate) handed: Handed,
}

/// Arguments as JSON.
pub(crate) fn encode_arguments(arguments: &Arguments, edge: &dyn Edge) -> Result<Encoded> {
    let mut count = Count::default();
    let written = write_arguments(arguments, edge, &mut count);
    let (args, kwargs) = written.inspect_err(|_| edge.lending().take_back(&count.handed.lent))?;
    Ok(Encoded { args, kwargs, handed: count.handed })
}

fn write_arguments(
    arguments: &Arguments,
    edge: &dyn Edge,
    count: &mut Count,
) -> Result<(Vec<Json>, Map<String, Json>)> {
    let args = arguments.args.iter().enumerate().map(|(position, value)| {
        write(value, edge, 0, count).map_err(|error| error.in_field(format!("argument {position}")))
    });
    let args = args.collect::<Result<_>>()?;
    let kwargs = arguments.kwargs.iter().map(|(name, value)| {
        let value = write(value, edge, 0, count).map_err(|error| error.in_field(name.as_str()))?;
        Ok((name.clone(), value))
    });
    Ok((args, kwargs.collect::<Result<_>>()?))
}

fn write(value: &Value, edge: &dyn Edge, depth: usize, count: &mut Count) -> Result<Json> {
    count.value(depth)?;
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(number) => json!(number),
        Value::Float(number) if number.is_finite() => json!(number),
        Value::Float(number) if number.is_nan() => json!({"$float": "nan"}),
        Value::Float(number) => json!({"$float": if *number > 0.0 { "inf" } else { "-inf" }}),
        Value::String(text) if text.len() > INLINE_BYTES_MAX => json!({"$text": aside(text.as_bytes(), edge, count)?}),
        Value::String(text) => {
            count.text(text.len())?;
            json!(text)
        }
        Value::Bytes(bytes) if bytes.len() > INLINE_BYTES_MAX => json!({"$bytes": aside(bytes, edge, count)?}),
        Value::Bytes(bytes) => {
            count.text(2 * bytes.len())?;
            json!({"$bytes": hex::encode(bytes)})
        }
        Value::List(values) => Json::Array(write_all(values, edge, depth, count)?),
        Value::Tuple(values) => json!({"$tuple": write_all(values, edge, depth, count)?}),
        Value::Map(values) => {
            let mut entries = Vec::with_capacity(values.len());
            for (name, value) in values {
                count.text(name.len())?;
                entries.push((name.clone(), write(value, edge, depth + 1, count)?));
            }
            match values.keys().any(|name| name.starts_with('$')) {
                true => json!({"$map": entries}),
                false => Json::Object(entries.into_iter().collect()),
            }
        }
        Value::Tensor(lease) => write_tensor(lease, edge, count)?,
        Value::Object(_) | Value::Remote(_) => json!({"$object": edge.refer(value)?}),
    })
}

fn write_tensor(lease: &Lease, edge: &dyn Edge, count: &mut Count) -> Result<Json> {
    count.tensor()?;
    match edge.lending().lend(lease) {
        Some(lent) => {
            count.handed.lent.push(lent.range);
            Ok(json!({"$lent": lent}))
        }
        None => Ok(json!({"$tensor": hand(lease, edge, &mut count.handed)?})),
    }
}

/// Bytes as a tensor: they would make the message too long.
fn aside(bytes: &[u8], edge: &dyn Edge, count: &mut Count) -> Result<Json> {
    let name = format!("data of {}", edge.holder().name());
    let spec = TensorSpec::new(&name[..name.floor_char_boundary(256)], DType::U8, &[bytes.len()]);
    let mut reservation = edge.outlet().reserve(spec, edge.holder())?;
    reservation.write(bytes, CopyReason::Put)?;
    let lease = reservation.publish()?;
    let json = write_tensor(&lease, edge, count)?;
    count.handed.own.push(lease);
    Ok(json)
}

/// The bytes of what [`aside`] wrote: copied before anything is read from them.
fn read_aside(name: &str, inner: Json, edge: &dyn Edge, depth: usize, count: &mut Count) -> Result<Vec<u8>> {
    match read(inner, edge, depth, count)? {
        Value::Tensor(lease) if lease.dtype() == DType::U8 => {
            let bytes = lease.bytes().map(<[u8]>::to_vec);
            bytes.ok_or_else(|| Error::unsupported(format!("{name}: a tensor that is not in this machine's memory")))
        }
        _ => Err(Error::invalid(format!("{name}: a tensor of bytes is expected"))),
    }
}

/// A tensor of the daemon's store: one that was leased over another connection is leased over this one, one that was lent over
/// another is published.
fn hand(lease: &Lease, edge: &dyn Edge, handed: &mut Handed) -> Result<TensorRef> {
    handed.any = true;
    let refer = |lease: &Lease| TensorRef {
        id: lease.id().into(),
        dtype: lease.dtype().name().to_owned(),
        shape: lease.shape().to_vec(),
    };
    if edge.store().holds(lease) {
        return Ok(refer(lease));
    }
    let own = match edge.store().join(lease, edge.holder()) {
        Some(own) => own,
        None => edge.store().publish_private(lease, edge.holder())?,
    };
    let reference = refer(&own);
    handed.own.push(own);
    Ok(reference)
}

fn write_all(values: &[Value], edge: &dyn Edge, depth: usize, count: &mut Count) -> Result<Vec<Json>> {
    values.iter().map(|value| write(value, edge, depth + 1, count)).collect()
}

/// The value of JSON; its tensors are leased to this end's holder.
pub(crate) fn decode(json: Json, edge: &dyn Edge) -> Result<Value> {
    read(json, edge, 0, &mut Count::default())
}

/// The arguments of JSON.
pub(crate) fn decode_arguments(args: Vec<Json>, kwargs: Map<String, Json>, edge: &dyn Edge) -> Result<Arguments> {
    let mut count = Count::default();
    let args = all(args.into_iter().enumerate().map(|(position, value)| {
        read(value, edge, 0, &mut count).map_err(|error| error.in_field(format!("argument {position}")))
    }));
    let kwargs = all(kwargs.into_iter().map(|(name, value)| {
        let value = read(value, edge, 0, &mut count).map_err(|error| error.in_field(name.as_str()))?;
        Ok((name, value))
    }));
    Ok(Arguments { args: args?, kwargs: kwargs? })
}

/// All of them, or the first error. The others are read all the same: what they were lent is given back with them.
fn all<T, C: FromIterator<T>>(read: impl Iterator<Item = Result<T>>) -> Result<C> {
    let mut failed = None;
    let read = read.filter_map(|value| value.map_err(|error| failed = failed.take().or(Some(error))).ok()).collect();
    failed.map_or(Ok(read), Err)
}

fn read(json: Json, edge: &dyn Edge, depth: usize, count: &mut Count) -> Result<Value> {
    count.value(depth)?;
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(float)) if !is_integer(&number.to_string()) => Value::Float(float),
            _ => return Err(Error::invalid(format!("{number} has more than 64 bits"))),
        },
        Json::String(text) => Value::String(text),
        Json::Array(values) => Value::List(read_all(values, edge, depth, count)?),
        Json::Object(mut entries) => {
            let special = entries.keys().find(|name| name.starts_with('$')).cloned();
            match special {
                Some(name) if entries.len() == 1 => {
                    let inner = entries.remove(&name).unwrap_or_default();
                    return read_special(&name, inner, edge, depth, count);
                }
                Some(name) => return Err(unknown(&name)),
                None => {
                    let entries =
                        entries.into_iter().map(|(name, value)| Ok((name, read(value, edge, depth + 1, count)?)));
                    Value::Map(all(entries)?)
                }
            }
        }
    })
}

fn read_all(values: Vec<Json>, edge: &dyn Edge, depth: usize, count: &mut Count) -> Result<Vec<Value>> {
    all(values.into_iter().map(|value| read(value, edge, depth + 1, count)))
}

/// Whether a number beyond `i64` was written as a whole one: it would silently lose digits as a float.
fn is_integer(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn unknown(name: &str) -> Error {
    Error::invalid(format!("an object with {name:?} is no value"))
}

fn read_special(name: &str, inner: Json, edge: &dyn Edge, depth: usize, count: &mut Count) -> Result<Value> {
    let wrong = |error: serde_json::Error| Error::invalid(format!("{name}: {error}"));
    match (name, inner) {
        ("$tensor", inner) => {
            count.tensor()?;
            let wanted: TensorRef = serde_json::from_value(inner).map_err(wrong)?;
            Ok(Value::Tensor(Arc::new(lease(&wanted, edge)?)))
        }
        ("$lent", inner) => {
            count.tensor()?;
            let lent: LentRef = serde_json::from_value(inner).map_err(wrong)?;
            Ok(Value::Tensor(Arc::new(edge.lending().borrow(&lent, edge.store(), edge.holder())?)))
        }
        ("$tuple", Json::Array(values)) => Ok(Value::Tuple(read_all(values, edge, depth, count)?)),
        ("$object", inner) => edge.resolve(serde_json::from_value(inner).map_err(wrong)?),
        ("$bytes", Json::String(digits)) => {
            let bytes =
                hex::decode(&digits).ok_or_else(|| Error::invalid("$bytes: hexadecimal digits are expected"))?;
            Ok(Value::Bytes(bytes))
        }
        ("$bytes", inner @ Json::Object(_)) => Ok(Value::Bytes(read_aside(name, inner, edge, depth, count)?)),
        ("$text", inner @ Json::Object(_)) => {
            let bytes = read_aside(name, inner, edge, depth, count)?;
            Ok(Value::String(String::from_utf8(bytes).map_err(|_| Error::corrupt("$text: this is no UTF-8"))?))
        }
        ("$float", Json::String(text)) => match text.as_str() {
            "nan" => Ok(Value::Float(f64::NAN)),
            "inf" => Ok(Value::Float(f64::INFINITY)),
            "-inf" => Ok(Value::Float(f64::NEG_INFINITY)),
            _ => Err(Error::invalid("$float: nan, inf or -inf is expected")),
        },
        ("$map", inner) => {
            let entries: Vec<(String, Json)> = serde_json::from_value(inner).map_err(wrong)?;
            let entries = entries.into_iter().map(|(name, value)| Ok((name, read(value, edge, depth + 1, count)?)));
            Ok(Value::Map(all(entries)?))
        }
        _ => Err(unknown(name)),
    }
}

/// Leases what the sender leases, looked at the same way.
fn lease(wanted: &TensorRef, edge: &dyn Edge) -> Result<Lease> {
    let dtype: DType = wanted.dtype.parse()?;
    let lease = edge.store().lease(wanted.id.into(), edge.holder())?;
    if lease.dtype() == dtype && lease.shape() == wanted.shape {
        return Ok(lease);
    }
    // The value is what the tensor is and how it is looked at.
    let (hash, producer) = (lease.identity(), lease.producer().to_owned());
    lease.view_as(&BlobSpec { device: lease.device(), hash, dtype, shape: wanted.shape.clone(), producer })
}
