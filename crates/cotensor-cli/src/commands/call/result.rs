//! Prints the result of a call.

use crate::commands::files::{export, is_stream};
use crate::output::{print, print_json, report};
use crate::table::{plain, shape};
use cotensor::core::{Error, Result, size};
use cotensor::store::Lease;
use cotensor_client::hex;
use cotensor_formats::Format;
use cotensor_functions::Value;
use serde_json::{Map, Value as Json, json};
use std::path::Path;
use std::sync::Arc;

/// Prints a result, with the fields of `about` in JSON output, and writes its tensors to `output`.
///
/// # Errors
/// `Invalid` for `output` and a result without tensors; the errors of writing.
pub(crate) fn show(value: &Value, mut about: Map<String, Json>, json: bool, output: Option<&Path>) -> Result<()> {
    let mut tensors = Vec::new();
    let shown = as_json(value, "", &mut tensors);
    match output {
        Some(file) => write(file, &tensors, json)?,
        None if tensors.is_empty() => {}
        None => report(
            "notice: the tensors of the result are freed when this command ends; `--output FILE` writes them to a file",
        ),
    }
    if json {
        about.insert("result".to_owned(), shown);
        return print_json(&about);
    }
    // Standard output contains the tensor.
    if output.is_some_and(is_stream) {
        return Ok(());
    }
    match value {
        Value::String(text) => print(&format!("{text}\n")),
        Value::Tensor(lease) => print(&format!("{}\n", line(lease))),
        _ => {
            let text = serde_json::to_string_pretty(&shown).map_err(|error| Error::invalid(error.to_string()))?;
            if matches!(value, Value::Remote(_)) {
                report("notice: the object was released when this command ended");
            }
            print(&format!("{text}\n"))
        }
    }
}

fn write(file: &Path, tensors: &[(String, Arc<Lease>)], json: bool) -> Result<()> {
    let format = if is_stream(file) { Format::Npy } else { Format::of(file)? };
    if json && is_stream(file) {
        return Err(
            Error::invalid("cannot be combined with `-`: standard output contains the tensor").in_field("--json")
        );
    }
    if tensors.is_empty() {
        return Err(Error::invalid("the result contains no tensor").in_field("--output"));
    }
    let named: Vec<(&str, &Lease)> = tensors.iter().map(|(name, lease)| (name.as_str(), &**lease)).collect();
    if named.len() == 1 || format == Format::Safetensors || is_stream(file) {
        return export(file, format, &named);
    }
    // The function has run: its result is written to a file of another format rather than lost.
    let beside = file.with_extension("safetensors");
    if beside.exists() {
        return export(file, format, &named);
    }
    export(&beside, Format::Safetensors, &named)?;
    let places: Vec<String> = tensors.iter().map(|(name, _)| plain(name)).collect();
    let message = format!(
        "the result has {} tensors ({}), but this format holds one; they were written to {}",
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

/// A value without tensors as JSON.
pub(in crate::commands) fn plain_json(value: &Value) -> Json {
    as_json(value, "", &mut Vec::new())
}

/// The value as JSON. Tensors are added to `tensors` with their paths, such as `outputs.logits`.
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
        // Encodings by Python of an OrderedDict and of a NumPy scalar.
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
        // Only a provider has local objects.
        Value::Object(_) => json!({"$object": {}}),
    }
}
