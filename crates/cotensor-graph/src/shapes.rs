//! Refuses nodes that make enormous constants. An engine that folds constants would allocate them while loading, and a
//! failed allocation aborts the process.
//!
//! The check sees shapes in the file only, not shapes that a run computes from inputs.

use super::limits::MADE_ELEMENTS_MAX;
use super::proto::{tensor_bytes, visit_nodes};
use cotensor_core::{Error, RANK_MAX, Result};
use rten_onnx::onnx::{DataType, GraphProto, NodeProto, TensorProto};
use std::collections::HashMap;

/// # Errors
/// `Corrupt` for an output with a negative dimension or more than [`MADE_ELEMENTS_MAX`] elements; the error names the
/// node.
pub(super) fn refuse_enormous(graph: &GraphProto) -> Result<()> {
    let mut constants = HashMap::new();
    collect(graph, &mut constants);
    let mut found = Ok(());
    visit_nodes(graph, &mut |node| {
        if let Err(error) = check(node, &constants) {
            let name = node.name.as_deref().unwrap_or_default();
            found = Err(error.in_field(format!("node {name:?}")));
        }
    });
    found
}

/// Small integer constants by name.
fn collect(graph: &GraphProto, constants: &mut HashMap<String, Vec<i64>>) {
    let mut add = |name: &str, tensor: &TensorProto| {
        if let Some(values) = integers(tensor) {
            constants.insert(name.to_owned(), values);
        }
    };
    for tensor in &graph.initializer {
        add(tensor.name.as_deref().unwrap_or_default(), tensor);
    }
    visit_nodes(graph, &mut |node| {
        let Some(output) = node.output.first().filter(|_| node.op_type.as_deref() == Some("Constant")) else { return };
        for attribute in &node.attribute {
            match (&attribute.t, attribute.i) {
                (Some(tensor), _) => {
                    if let Some(values) = integers(tensor) {
                        constants.insert(output.clone(), values);
                    }
                }
                (None, Some(value)) => drop(constants.insert(output.clone(), vec![value])),
                (None, None) => drop(constants.insert(output.clone(), attribute.ints.clone())),
            }
        }
    });
}

fn integers(tensor: &TensorProto) -> Option<Vec<i64>> {
    // Checked before the bytes are copied: a larger tensor is not a shape.
    let count = tensor.dims.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim))?;
    if count > RANK_MAX as i64 {
        return None;
    }
    match tensor.data_type? {
        DataType::INT64 => {
            Some(tensor_bytes(tensor).as_chunks::<8>().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect())
        }
        DataType::INT32 => Some(
            tensor_bytes(tensor).as_chunks::<4>().0.iter().map(|&bytes| i32::from_le_bytes(bytes).into()).collect(),
        ),
        _ => None,
    }
}

fn check(node: &NodeProto, constants: &HashMap<String, Vec<i64>>) -> Result<()> {
    let constant = |input: usize| node.input.get(input).and_then(|name| constants.get(name)).map(Vec::as_slice);
    match node.op_type.as_deref().unwrap_or_default() {
        "ConstantOfShape" => constant(0).map_or(Ok(()), bounded),
        "Expand" | "Tile" => constant(1).map_or(Ok(()), bounded),
        "RandomNormal" | "RandomUniform" => {
            let shape = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("shape"));
            shape.map_or(Ok(()), |shape| bounded(&shape.ints))
        }
        "Range" => match (constant(0), constant(1), constant(2)) {
            (Some(&[start]), Some(&[limit]), Some(&[step])) if step != 0 => {
                let count = (i128::from(limit) - i128::from(start)) / i128::from(step);
                bounded(&[count.clamp(0, i128::from(i64::MAX)) as i64])
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn bounded(dims: &[i64]) -> Result<()> {
    if let Some(dim) = dims.iter().find(|dim| **dim < 0) {
        return Err(Error::corrupt(format!("makes a tensor with a dimension of {dim}")));
    }
    // A zero counts as one: the engine multiplies the dimensions in its own order.
    match dims.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim.max(1))) {
        Some(count) if count as u64 <= MADE_ELEMENTS_MAX => Ok(()),
        _ => Err(Error::corrupt(format!(
            "makes a tensor of shape {dims:?}; at most {MADE_ELEMENTS_MAX} elements are allowed"
        ))),
    }
}
