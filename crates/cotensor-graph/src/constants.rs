//! The constants of a graph: initializers, `Constant` nodes, and copies of them. Exporters write one initializer for equal
//! parameters and give the others by `Identity`, and they convert constants by `Cast`.

use super::proto::{dtype_of, integer, operator, tensor_bytes, with_bytes};
use cotensor_core::DType;
use rten_onnx::onnx::{DataLocation, DataType, GraphProto, NodeProto, TensorProto};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The constants of a graph by name, without those of its subgraphs.
pub struct Constants<'g>(HashMap<&'g str, Constant<'g>>);

#[derive(Clone, Copy)]
struct Constant<'g> {
    /// The name of the value that has the tensor: an initializer, or what a `Constant` gives. The tensor of a `Constant` may have another name.
    name: &'g str,
    tensor: &'g TensorProto,
    dtype: Option<DataType>,
}

impl Constant<'_> {
    /// Whether the file of the graph holds the elements, which are too small for a weight.
    fn is_embedded(&self) -> bool {
        self.tensor.data_location != Some(DataLocation::EXTERNAL)
    }

    /// Whether the constant has another element type than the tensor.
    fn is_cast(&self) -> bool {
        self.dtype != self.tensor.data_type
    }
}

impl<'g> Constants<'g> {
    /// Reads the nodes in order; a copy before its source is not a constant. Of two values with one name, the first counts.
    pub(super) fn of(graph: &'g GraphProto) -> Self {
        let plain = |name: &'g str, tensor: &'g TensorProto| Constant { name, tensor, dtype: tensor.data_type };
        let named = graph.initializer.iter().filter_map(|tensor| Some((tensor.name.as_deref()?, tensor)));
        let mut known: HashMap<&str, Constant<'_>> = named.map(|(name, tensor)| (name, plain(name, tensor))).collect();
        for node in &graph.node {
            let Some(output) = node.output.first() else { continue };
            let source = || node.input.first().and_then(|name| known.get(name.as_str())).copied();
            let found = match operator(node) {
                "Constant" => value_of(node).map(|tensor| plain(output, tensor)),
                "Identity" => source(),
                "Cast" => source().map(|source| Constant { dtype: cast_to(node), ..source }),
                _ => None,
            };
            if let Some(constant) = found
                && let Entry::Vacant(entry) = known.entry(output)
            {
                entry.insert(constant);
            }
        }
        Self(known)
    }

    /// Whether all elements of a constant are 0, also after a conversion.
    pub(super) fn is_zero(&self, name: &str) -> bool {
        let embedded = self.0.get(name).filter(|constant| constant.is_embedded());
        // A type that is not decoded has no bytes here.
        let is_zero = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(|&byte| byte == 0);
        embedded.is_some_and(|constant| with_bytes(constant.tensor, is_zero))
    }

    /// Whether the elements of a constant have this type.
    pub(super) fn has_type(&self, name: &str, dtype: DataType) -> Option<bool> {
        Some(self.0.get(name)?.dtype == Some(dtype))
    }

    /// The tensor of which a value is an unconverted copy.
    pub(super) fn plain(&self, name: &str) -> Option<&'g TensorProto> {
        self.named(name).map(|(_, tensor)| tensor)
    }

    /// The same, with the name of the value that has it.
    pub(super) fn named(&self, name: &str) -> Option<(&'g str, &'g TensorProto)> {
        self.0.get(name).filter(|constant| !constant.is_cast()).map(|constant| (constant.name, constant.tensor))
    }

    /// The shape of a constant.
    pub fn dims(&self, name: &str) -> Option<&'g [i64]> {
        Some(&self.0.get(name)?.tensor.dims)
    }

    /// The element type and the little-endian elements of a constant that the file of the graph holds. `None` after a
    /// conversion.
    pub fn elements(&self, name: &str) -> Option<(DType, Vec<u8>)> {
        let constant = self.0.get(name).filter(|constant| !constant.is_cast() && constant.is_embedded())?;
        Some((dtype_of(constant.tensor.data_type).ok()?, tensor_bytes(constant.tensor)))
    }

    /// The name of the constant of which a value is a copy, converted or not.
    pub fn source(&self, name: &str) -> Option<&'g str> {
        self.0.get(name).map(|constant| constant.name)
    }

    /// The name of the constant of which a value is an unconverted copy.
    pub fn plain_source(&self, name: &str) -> Option<&'g str> {
        self.named(name).map(|(source, _)| source)
    }
}

/// The type that a `Cast` gives.
fn cast_to(node: &NodeProto) -> Option<DataType> {
    integer(node, "to").and_then(|to| i32::try_from(to).ok()).map(DataType)
}

/// The tensor that a `Constant` node gives.
fn value_of(node: &NodeProto) -> Option<&TensorProto> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("value"))?.t.as_ref()
}
