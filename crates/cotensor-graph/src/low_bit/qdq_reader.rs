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

    /// How the codes of a product lie.
    pub(super) fn orientation(&self) -> Orientation {
        let [first, second] = self.matrix.dims;
        let has_rows_first = self.used.is_transposed == self.matrix.is_turned;
        let (rows, columns) = if has_rows_first { (first, second) } else { (second, first) };
        Orientation { rows, columns, has_rows_first }
    }
}

/// How the codes of a product lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Orientation {
    /// The columns of the result.
    pub(super) rows: usize,
    /// The elements that the product sums over.
    pub(super) columns: usize,
    /// Whether the codes have the shape `[rows, columns]`: not that of the other factor.
    pub(super) has_rows_first: bool,
}

impl Orientation {
    /// The dimension of the codes that has the rows.
    pub(super) fn row_axis(&self) -> usize {
        usize::from(!self.has_rows_first)
    }
}
