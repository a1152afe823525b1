//! The parameters of a quantized file.

use crate::graph::Matrix;
use cotensor_core::Error;

/// A matrix of codes in a file.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    /// The name of the parameter, without `.weight`.
    pub(super) stem: String,
    /// The tensor of the file.
    pub(super) source: String,
    /// How the file stores it, such as `Q4_K` or `gptq`.
    pub(super) format: String,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Parameter {
    pub(super) fn name(&self) -> String {
        name_of(&self.stem)
    }

    pub(super) fn has_shape_of(&self, matrix: &Matrix) -> bool {
        [self.rows, self.columns] == [matrix.rows, matrix.columns]
    }
}

/// The name of a parameter.
pub(super) fn name_of(stem: &str) -> String {
    format!("{stem}.weight")
}

/// An error of a part of a tensor, with the tensor as the field.
pub(super) fn of_tensor(tensor: &str, error: &Error) -> Error {
    let message = match error.field() {
        Some(part) => format!("{part}: {}", error.message()),
        None => error.message().to_owned(),
    };
    Error::new(error.kind(), message).in_field(tensor)
}

/// The module of a weight. Exporters write some weights twice, as `name` and as `name::T`.
pub(super) fn of_weight(name: &str) -> String {
    let name = name.strip_suffix("::T").unwrap_or(name);
    name.strip_suffix(".weight").unwrap_or(name).to_owned()
}

/// The module in the name of a node, such as `/model/layers.0/mlp/up_proj/MatMul`.
pub(super) fn of_node(name: &str) -> Option<String> {
    let (module, _) = name.rsplit_once('/')?;
    let module = module.trim_start_matches('/').replace('/', ".");
    (!module.is_empty()).then_some(module)
}
