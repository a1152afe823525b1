//! A result as people and programs read it.

use crate::commands::files::{export, is_stream};
use crate::commands::{print, print_json};
use crate::output::tell;
use crate::table::{plain, shape};
use cotensor::core::{Error, Result, size};
use cotensor::store::Lease;
use cotensor_client::hex;
use cotensor_formats::Format;
use cotensor_functions::Value;
use serde_json::{Map, Value as Json, json};
use std::path::Path;
use std::sync::Arc;

/// Prints what a function gave, with `about` where JSON is asked for, and writes its tensors to `output`.
///
/// # Errors
/// `Invalid` for a result without tensors where a file wants some; those of writing.
pub(crate) fn show(value: &Value, mut about: Map<String, Json>, json: bool, output: Option<&Path>) -> Result<()> {
    let mut tensors = Vec::new();
    let shown = as_json(value, "", &mut tensors);
    match output {
        Some(file) => write(file, &tensors, json)?,
        None if tensors.is_empty() => {}
        None => {
            tell("notice: this command leases the tensors of the result until it ends; `--output FILE` writes them")
        }
    }
    if json {
        about.insert("result".to_owned(), shown);
        return print_json(&about);
    }
    // The tensor is on standard output already.
    if output.is_some_and(is_stream) {
        return Ok(());
    }
    match value {
        Value::String(text) => print(&format!("{text}\n")),
        Value::Tensor(lease) => print(&format!("{}\n", line(lease))),
        _ => {
            let text = serde_json::to_string_pretty(&shown).map_err(|error| Error::invalid(error.to_string()))?;
            if matches!(value, Value::Remote(_)) {
                tell("notice: the object was given back when this command ended");
            }
            print(&format!("{text}\n"))
        }
    }
}

fn write(file: &Path, tensors: &[(String, Arc<Lease>)], json: bool) -> Result<()> {
    let format = if is_stream(file) { Format::Npy } else { Format::of(file)? };
    if json && is_stream(file) {
        return Err(Error::invalid("standard output holds the tensor already").in_field("--json"));
    }
    if tensors.is_empty() {
        return Err(Error::invalid("no tensor is in the result").in_field("--output"));
    }
    let named: Vec<(&str, &Lease)> = tensors.iter().map(|(name, lease)| (name.as_str(), &**lease)).collect();
    if named.len() == 1 || format == Format::Safetensors || is_stream(file) {
        return export(file, format, &named);
    }
    // The function has run: its result is written to a file that takes it, and not lost.
    let beside = file.with_extension("safetensors");
    if beside.exists() {
        return export(file, format, &named);
    }
    export(&beside, Format::Safetensors, &named)?;
    let places: Vec<String> = tensors.iter().map(|(name, _)| plain(name)).collect();
    let message = format!(
        "the result has {} tensors ({}), and this format takes one: they were written to {} instead",
        tensors.len(),
        places.join(", "),
        plain(&beside.display().to_string())
    );
    Err(Error::invalid(message).in_file(file).in_field("--output"))
}

fn line(lease: &Lease) -> String {
    let bytes = lease.layout().size_bytes() as u64;
    format!("{}: {} {}, {}", plain(lease.name()), lease.dtype().name(), shape(lease.shape()), size(bytes))
}

/// The value as JSON. Tensors are added to `tensors` under their places, such as `outputs.logits`.
fn as_json(value: &Value, place: &str, tensors: &mut Vec<(String, Arc<Lease>)>) -> Json {
    let within = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => json!(value),
        Value::Int(number) => json!(number),
        Value::Float(number) if number.is_finite() => json!(number),
        Value::Float(number) => json!({ "$float": number.to_string().to_lowercase() }),
        Value::String(text) => json!(text),
        Value::Bytes(bytes) => json!({ "$bytes": hex::encode(bytes) }),
        Value::List(values) | Value::Tuple(values) => {
            values.iter().enumerate().map(|(at, value)| as_json(value, &within(&at.to_string()), tensors)).collect()
        }
        // One of numpy's numbers, and an OrderedDict, as Python sends them.
        Value::Map(values) if values.len() == 1 && values.contains_key("$ordered") => {
            as_json(&values["$ordered"], place, tensors)
        }
        Value::Map(values) if values.len() == 1 && values.contains_key("$numpy") => match &values["$numpy"] {
            Value::Tuple(pair) if pair.len() == 2 => as_json(&pair[1], place, tensors),
            other => as_json(other, place, tensors),
        },
        Value::Map(values) => {
            values.iter().map(|(name, value)| (name.clone(), as_json(value, &within(name), tensors))).collect()
        }
        Value::Tensor(lease) => {
            let name = if place.is_empty() { "result" } else { place };
            tensors.push((name.to_owned(), Arc::clone(lease)));
            json!({"$tensor": {
                "name": lease.name(),
                "version": lease.id().version,
                "dtype": lease.dtype().name(),
                "shape": lease.shape(),
                "bytes": lease.layout().size_bytes(),
            }})
        }
        Value::Remote(object) => json!({"$object": {"id": object.number(), "epoch": object.epoch()}}),
        // Only a provider has objects of its own.
        Value::Object(_) => json!({"$object": {}}),
    }
}
