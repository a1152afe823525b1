//! The initializers of a graph: large ones are weights, small ones stay in the graph.

use super::external;
use super::files::GraphFiles;
use super::limits::{PRIVATE_BYTES_MAX, SHARED_BYTES_MIN};
use super::proto::{dtype_of, has_four_bits, weight_location, with_bytes};
use super::types::{Weight, WeightPlace, WeightSource};
use super::wire::Span;
use cotensor_core::{DType, Error, Layout, Result};
use rten_onnx::onnx::{
    DataLocation, DataType, Dimension, GraphProto, StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto,
    TypeProtoTensor, ValueInfoProto,
};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// Finds the weights among the initializers and reads all other initializers into the graph. Returns the names of all
/// initializers and the weights.
///
/// # Errors
/// As [`Graph::read`](super::Graph::read).
pub(super) fn collect(
    graph: &mut GraphProto,
    spans: Vec<Option<Span>>,
    files: &mut dyn GraphFiles,
) -> Result<(HashSet<String>, Vec<Weight>)> {
    let mut weights = Vec::new();
    let mut names = HashSet::with_capacity(graph.initializer.len());
    let mut room = PRIVATE_BYTES_MAX;
    for (tensor, span) in graph.initializer.iter_mut().zip(spans) {
        let name = tensor.name.clone().unwrap_or_default();
        let field = format!("initializer {name:?}");
        if name.is_empty() || !names.insert(name.clone()) {
            return Err(Error::corrupt("an initializer needs a unique name").in_field(field));
        }
        let located = locate(tensor, span, files).map_err(|error| error.in_field(&field))?;
        let Some(source) = located else { continue };
        if source.length >= SHARED_BYTES_MIN && is_shareable(source.dtype) {
            // Codes of 4 bits are bytes in a store.
            let shape = if has_four_bits(tensor) { vec![source.length as usize] } else { shape(tensor)? };
            weights.push(Weight { name, dtype: source.dtype, shape, source });
        } else {
            room = room.checked_sub(source.length).ok_or_else(|| {
                let message = format!("constants of {} and the like pass {PRIVATE_BYTES_MAX} bytes", source.dtype);
                Error::unsupported(message).in_field(&field)
            })?;
            make_private(tensor, &source, files).map_err(|error| error.in_field(&field))?;
        }
    }
    Ok((names, weights))
}

/// Replaces the data of the initializer of each weight by its index in `weights`.
pub(super) fn detach(graph: &mut GraphProto, weights: &[Weight]) {
    let indices: HashMap<&str, usize> =
        weights.iter().enumerate().map(|(index, weight)| (weight.name.as_str(), index)).collect();
    for tensor in &mut graph.initializer {
        if let Some(&index) = tensor.name.as_deref().and_then(|name| indices.get(name)) {
            make_external(tensor, &weights[index], index);
        }
    }
}

/// The source of an initializer's data; `None` if the structure holds the data.
fn locate(tensor: &TensorProto, span: Option<Span>, files: &mut dyn GraphFiles) -> Result<Option<WeightSource>> {
    let dtype = if has_four_bits(tensor) { DType::U8 } else { dtype_of(tensor.data_type)? };
    let shape = shape(tensor)?;
    let size = Layout::contiguous(dtype, &shape).map_err(|error| Error::corrupt(error.message()))?.size_bytes() as u64;
    let size = if has_four_bits(tensor) { size.div_ceil(2) } else { size };
    let (file, span) = match (tensor.data_location, span) {
        (None | Some(DataLocation::DEFAULT), None) => return check_inner(tensor, size).map(|()| None),
        (None | Some(DataLocation::DEFAULT), Some(span)) => {
            if !span.field.holds(dtype) {
                return Err(Error::corrupt(format!("its {} does not hold {dtype}", span.field.name())));
            }
            (files.own()?, span)
        }
        (Some(DataLocation::EXTERNAL), None) => external::locate(files, &tensor.external_data, size)?,
        (Some(_), _) => return Err(Error::corrupt("its data has two locations, or an unknown location")),
    };
    if span.length != size {
        return Err(Error::corrupt(format!(
            "shape {shape:?} of {dtype} is {size} bytes, its data has {}",
            span.length
        )));
    }
    Ok(Some(WeightSource {
        file,
        offset: span.offset,
        length: span.length,
        dtype,
        permutation: None,
        repacks: Vec::new(),
    }))
}

/// Checks that data in the structure has the size of the shape.
fn check_inner(tensor: &TensorProto, size: u64) -> Result<()> {
    let found = with_bytes(tensor, <[u8]>::len) as u64;
    if found != size {
        return Err(Error::corrupt(format!("shape {:?} is {size} bytes, its data has {found}", tensor.dims)));
    }
    Ok(())
}

/// Whether engines use the type in place, or a type to which loading converts it.
fn is_shareable(stored: DType) -> bool {
    matches!(stored, DType::F32 | DType::I32 | DType::U8 | DType::I8 | DType::F16 | DType::F64)
}

/// The ONNX data type of a weight's type.
fn onnx_dtype(shared: DType) -> DataType {
    match shared {
        DType::I32 => DataType::INT32,
        DType::U8 => DataType::UINT8,
        DType::I8 => DataType::INT8,
        DType::F16 => DataType::FLOAT16,
        DType::F64 => DataType::DOUBLE,
        // The only other shareable type is float32.
        _ => DataType::FLOAT,
    }
}

/// The description of a weight as an input of its graph.
pub(super) fn as_input(weight: &Weight) -> ValueInfoProto {
    let dim = |&dim: &usize| Dimension { dim_value: Some(dim as i64), dim_param: None };
    let shape = TensorShapeProto { dim: weight.shape.iter().map(dim).collect() };
    let tensor_type = TypeProtoTensor { elem_type: Some(onnx_dtype(weight.dtype)), shape: Some(shape) };
    let kind = TypeProto { tensor_type: Some(tensor_type), ..TypeProto::default() };
    ValueInfoProto { name: Some(weight.name.clone()), r#type: Some(kind) }
}

/// Sets the external file and the offset of the initializer of each weight.
pub(super) fn place(graph: &mut GraphProto, weights: &[Weight], places: &[WeightPlace]) {
    let places: HashMap<&str, (&Weight, &WeightPlace)> =
        weights.iter().zip(places).map(|(weight, place)| (weight.name.as_str(), (weight, place))).collect();
    for tensor in &mut graph.initializer {
        if let Some((weight, place)) = tensor.name.as_deref().and_then(|name| places.get(name)) {
            tensor.external_data = external_data(&place.location, place.offset, weight);
        }
    }
}

fn external_data(location: &str, offset: u64, weight: &Weight) -> Vec<StringStringEntryProto> {
    let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.to_owned()), value: Some(value) };
    vec![
        entry("location", location.to_owned()),
        entry("offset", offset.to_string()),
        entry("length", weight.size_bytes().to_string()),
    ]
}

/// Replaces the data of a weight's initializer by a reference to external file number `index`.
fn make_external(tensor: &mut TensorProto, weight: &Weight, index: usize) {
    *tensor = TensorProto {
        dims: std::mem::take(&mut tensor.dims),
        name: tensor.name.take(),
        data_type: if has_four_bits(tensor) { tensor.data_type } else { Some(onnx_dtype(weight.dtype)) },
        data_location: Some(DataLocation::EXTERNAL),
        external_data: external_data(&weight_location(index), 0, weight),
        ..TensorProto::default()
    };
}

/// Reads the data of an initializer that is not a weight into the graph.
fn make_private(tensor: &mut TensorProto, source: &WeightSource, files: &dyn GraphFiles) -> Result<()> {
    // The length is at most PRIVATE_BYTES_MAX and at most the length of the file.
    let mut bytes = vec![0; source.length as usize];
    files.read(&source.file, source.offset, &mut bytes)?;
    *tensor = TensorProto {
        dims: std::mem::take(&mut tensor.dims),
        name: tensor.name.take(),
        data_type: tensor.data_type,
        raw_data: Some(RefCell::new(bytes)),
        ..TensorProto::default()
    };
    Ok(())
}

fn shape(tensor: &TensorProto) -> Result<Vec<usize>> {
    let dim = |&dim: &i64| usize::try_from(dim).map_err(|_| Error::corrupt(format!("a dimension of {dim}")));
    tensor.dims.iter().map(dim).collect()
}
