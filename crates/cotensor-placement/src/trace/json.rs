use super::trace::{Operation, Tensor, Trace};
use crate::time::from_micros;
use cotensor_core::{Error, Result};
use serde::Deserialize;
use std::collections::HashMap;
use std::fmt;

#[derive(Deserialize)]
struct TraceFile {
    tensors: Vec<TensorEntry>,
    operations: Vec<OperationEntry>,
    #[serde(default = "one")]
    periods: u32,
}

#[derive(Deserialize)]
struct TensorEntry {
    id: Id,
    size_bytes: u64,
}

#[derive(Deserialize)]
struct OperationEntry {
    name: String,
    uses: Vec<Id>,
    #[serde(default)]
    writes: Vec<Id>,
    compute_us: f64,
    cpu_us: Option<f64>,
    #[serde(default)]
    workspace_bytes: u64,
}

/// The id of a tensor: a text or a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Number(u64),
    Text(String),
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

fn one() -> u32 {
    1
}

impl Trace {
    /// Reads a trace from JSON: `{"tensors": [{"id", "size_bytes"}], "operations": [{"name", "uses": [id], "compute_us",
    /// "cpu_us" (optional), "workspace_bytes" (optional), "writes": [id] (optional)}], "periods" (optional)}`. Times are
    /// in microseconds.
    ///
    /// # Errors
    /// `Invalid` if the text is no such JSON, and those of [`Trace::new`]. Errors name the field.
    pub fn from_json(text: &str) -> Result<Self> {
        let file: TraceFile =
            serde_json::from_str(text).map_err(|error| Error::invalid(format!("not a trace: {error}")))?;
        let tensors: Vec<Tensor> = file
            .tensors
            .into_iter()
            .map(|entry| Tensor { id: entry.id.to_string(), size_bytes: entry.size_bytes })
            .collect();
        let indices: HashMap<&str, usize> =
            tensors.iter().enumerate().map(|(index, tensor)| (tensor.id.as_str(), index)).collect();
        let operations = file.operations.into_iter().enumerate().map(|(index, entry)| {
            let field = |name: &str| format!("operations[{index}].{name}");
            let positions = |ids: &[Id], name: &str| {
                let position = |id: &Id| {
                    let id = id.to_string();
                    let unknown = || Error::invalid(format!("no tensor has the id {id:?}")).in_field(field(name));
                    indices.get(id.as_str()).copied().ok_or_else(unknown)
                };
                ids.iter().map(position).collect::<Result<Vec<_>>>()
            };
            let nanos = |micros: f64, name: &str| match micros {
                0.0.. if micros.is_finite() => Ok(from_micros(micros)),
                _ => Err(Error::invalid(format!("{micros} is not a time in microseconds")).in_field(field(name))),
            };
            Ok(Operation {
                uses: positions(&entry.uses, "uses")?,
                writes: positions(&entry.writes, "writes")?,
                compute_ns: nanos(entry.compute_us, "compute_us")?,
                cpu_ns: entry.cpu_us.map(|micros| nanos(micros, "cpu_us")).transpose()?,
                workspace_bytes: entry.workspace_bytes,
                name: entry.name,
            })
        });
        let operations = operations.collect::<Result<Vec<_>>>()?;
        Self::new(tensors, operations, file.periods)
    }
}
