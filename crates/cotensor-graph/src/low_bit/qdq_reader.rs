//! Nodes that read matrices of codes.

use super::dequantized::{Dequantized, Values};
use super::find::Use;
use rten_onnx::onnx::NodeProto;

/// A use of a matrix by a node.
pub(super) struct Reader<'m> {
    pub(super) matrix: &'m Dequantized,
    pub(super) used: Use,
}

impl<'m> Reader<'m> {
    pub(super) fn of(node: &NodeProto, values: &'m Values) -> Option<Self> {
        let found = node.input.iter().enumerate().find_map(|(at, name)| {
            let matrix = values.matrices.get(name)?;
            Use::of(node, at).map(|used| Self { matrix, used })
        });
        found.filter(|_| node.output.len() == 1)
    }

    /// Whether the codes have the shape `[rows, columns]` of a product: not that of the other factor.
    pub(super) fn has_rows_first(&self) -> bool {
        self.used.is_transposed == self.matrix.is_turned
    }
}
