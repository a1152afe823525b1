//! Helpers for the messages of the ONNX format.

use super::types::Port;
use cotensor_core::{DType, Error, Result};
use rten_onnx::onnx::{AttributeProto, DataType, GraphProto, NodeProto, TensorProto, ValueInfoProto};
use std::collections::HashSet;

/// The external file of weight number `index` in the encoded graph.
pub fn weight_location(index: usize) -> String {
    format!("{index}.data")
}

/// Calls `visit` with every node, including the nodes of subgraphs.
pub(super) fn visit_nodes(graph: &GraphProto, visit: &mut dyn FnMut(&NodeProto)) {
    for node in &graph.node {
        visit(node);
        for subgraph in node.attribute.iter().filter_map(|attribute: &AttributeProto| attribute.g.as_ref()) {
            visit_nodes(subgraph, visit);
        }
    }
}

/// Calls `visit` with a graph and the graphs inside of its nodes.
pub(super) fn visit_graphs<'g>(graph: &'g GraphProto, visit: &mut dyn FnMut(&'g GraphProto)) {
    visit(graph);
    for subgraph in graph.node.iter().flat_map(|node| &node.attribute).filter_map(|attribute| attribute.g.as_ref()) {
        visit_graphs(subgraph, visit);
    }
}

/// An integer attribute of a node.
pub(super) fn integer(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))?.i
}

/// An input of a node, if it has one.
pub(crate) fn given(node: &NodeProto, at: usize) -> Option<&str> {
    node.input.get(at).map(String::as_str).filter(|name| !name.is_empty())
}

/// The names that nodes, initializers and inputs of subgraphs define, in all scopes. A name that two scopes define is there twice.
pub(super) fn definitions(graph: &GraphProto) -> Vec<&str> {
    let mut names = Vec::new();
    visit_graphs(graph, &mut |scope| {
        let initializers = scope.initializer.iter().filter_map(|tensor| tensor.name.as_deref());
        names.extend(initializers.chain(scope.node.iter().flat_map(|node| &node.output).map(String::as_str)));
        // Old files list the constants of the main graph as inputs.
        if !std::ptr::eq(scope, graph) {
            names.extend(scope.input.iter().filter_map(|input| input.name.as_deref()));
        }
    });
    names.retain(|name| !name.is_empty());
    names
}

/// The names that are defined more than once, in one scope or in several. Engines differ in which definition counts.
pub(super) fn defined_twice(graph: &GraphProto) -> HashSet<String> {
    let mut known = HashSet::new();
    definitions(graph).into_iter().filter(|name| !known.insert(*name)).map(str::to_owned).collect()
}

/// The port of an input or output.
///
/// # Errors
/// `Corrupt` without a name, `Unsupported` for an unknown element type.
pub(super) fn port(value: &ValueInfoProto) -> Result<Port> {
    let name = value.name.clone().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Error::corrupt("an input or output has no name").in_field("graph"))?;
    let tensor = value.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
    let dtype = tensor.and_then(|tensor| tensor.elem_type).map(|dtype| dtype_of(Some(dtype))).transpose();
    let dtype = dtype.map_err(|error| error.in_field(&name))?;
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    let fixed = |value: Option<i64>| value.and_then(|value| usize::try_from(value).ok());
    let dims = shape.map(|shape| shape.dim.iter().map(|dim| fixed(dim.dim_value)).collect());
    Ok(Port { name, dtype, dims })
}

/// The element type of an ONNX data type.
pub(super) fn dtype_of(dtype: Option<DataType>) -> Result<DType> {
    Ok(match dtype.ok_or_else(|| Error::corrupt("the element type is missing"))? {
        DataType::FLOAT => DType::F32,
        DataType::UINT8 => DType::U8,
        DataType::INT8 => DType::I8,
        DataType::UINT16 => DType::U16,
        DataType::INT16 => DType::I16,
        DataType::INT32 => DType::I32,
        DataType::INT64 => DType::I64,
        DataType::BOOL => DType::Bool,
        DataType::FLOAT16 => DType::F16,
        DataType::DOUBLE => DType::F64,
        DataType::UINT32 => DType::U32,
        DataType::UINT64 => DType::U64,
        DataType::BFLOAT16 => DType::BF16,
        other => return Err(Error::unsupported(format!("element type {other} is not supported"))),
    })
}

/// Whether the elements of a tensor have 4 bits: two in a byte, the first one in the lower half.
pub(super) fn has_four_bits(tensor: &TensorProto) -> bool {
    matches!(tensor.data_type, Some(DataType::INT4 | DataType::UINT4))
}

/// The domain of an operator; ONNX's own domain has two spellings.
pub(super) fn normal_domain(domain: Option<&str>) -> &str {
    match domain {
        None | Some("ai.onnx") => "",
        Some(other) => other,
    }
}

/// The name of an operator in ONNX's own domain; empty for other domains.
pub(super) fn operator(node: &NodeProto) -> &str {
    match normal_domain(node.domain.as_deref()) {
        "" => node.op_type.as_deref().unwrap_or_default(),
        _ => "",
    }
}

/// The elements of a tensor in little-endian order, from any of its data fields.
pub(super) fn tensor_bytes(tensor: &TensorProto) -> Vec<u8> {
    match &tensor.raw_data {
        Some(raw) => raw.borrow().clone(),
        None => typed_bytes(tensor),
    }
}

/// What `read` gives for the elements of [`tensor_bytes`], without a copy of raw data.
pub(super) fn with_bytes<T>(tensor: &TensorProto, read: impl FnOnce(&[u8]) -> T) -> T {
    match &tensor.raw_data {
        Some(raw) => read(&raw.borrow()),
        None => read(&typed_bytes(tensor)),
    }
}

/// The elements of the field for the type of a tensor.
fn typed_bytes(tensor: &TensorProto) -> Vec<u8> {
    match tensor.data_type {
        Some(DataType::FLOAT) => tensor.float_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Some(DataType::DOUBLE) => tensor.double_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Some(DataType::INT64) => tensor.int64_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Some(DataType::INT32) => tensor.int32_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        // Each element of a narrower type has 32 bits in the file, or each two elements of 4 bits.
        Some(DataType::INT8 | DataType::UINT8 | DataType::BOOL | DataType::INT4 | DataType::UINT4) => {
            tensor.int32_data.iter().map(|&value| value as u8).collect()
        }
        Some(DataType::INT16 | DataType::UINT16 | DataType::FLOAT16 | DataType::BFLOAT16) => {
            tensor.int32_data.iter().flat_map(|&value| (value as u16).to_le_bytes()).collect()
        }
        _ => Vec::new(),
    }
}
