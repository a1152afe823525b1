//! The tensors that products by codes read.

use crate::coded_product::{GROUP_INDICES, Shape, is_product};
use crate::onnx::Graph;
use crate::proto::{given, visit_nodes};

/// The inputs of the operator between the activations and the indices of groups.
const TENSORS: usize = 3;

/// A product by codes, as its node has it; or one by a matrix that `DequantizeLinear` makes of constants, as it becomes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodedProduct {
    /// The name of the node.
    pub node: String,
    /// Whether it has indices of groups, so that these are not columns one after the other.
    pub has_order: bool,
    /// The names of its codes, scales and zero points; no zero points for a node without these.
    pub tensors: Vec<String>,
    /// Bits of a code.
    pub bits: u32,
    /// Elements of a group.
    pub group: usize,
    /// The columns of the result.
    pub rows: usize,
    /// The elements that the product sums over, in whole groups.
    pub columns: usize,
}

impl Graph {
    /// The products by codes of this graph and its subgraphs.
    pub fn coded_products(&self) -> Vec<CodedProduct> {
        let mut found = self.operator_products();
        self.visit_dequantized(&mut |node, matrix, grouping| {
            found.push(CodedProduct {
                node: node.name.clone().unwrap_or_default(),
                has_order: false,
                tensors: matrix.names().cloned().collect(),
                bits: matrix.bits(),
                group: grouping.group,
                rows: grouping.orientation.rows,
                columns: grouping.orientation.columns,
            });
        });
        found
    }

    /// Those that are the operator `MatMulNBits`.
    pub fn operator_products(&self) -> Vec<CodedProduct> {
        let mut found = Vec::new();
        visit_nodes(self.graph(), &mut |node| {
            let Some(Ok(shape)) = is_product(node).then(|| Shape::of(node)) else { return };
            let tensors = node.input.iter().skip(1).take(TENSORS);
            found.push(CodedProduct {
                node: node.name.clone().unwrap_or_default(),
                has_order: given(node, GROUP_INDICES).is_some(),
                tensors: tensors.filter(|name| !name.is_empty()).cloned().collect(),
                bits: shape.bits,
                group: shape.group,
                rows: shape.rows,
                columns: shape.groups.saturating_mul(shape.group),
            });
        });
        found
    }
}
