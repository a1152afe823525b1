//! The products by codes that an engine multiplies as they are.

use crate::coded_product::{Shape, Zeros, bias, has_products};
use crate::onnx::Graph;
use crate::proto::integer;
use rten_onnx::onnx::NodeProto;

/// `accuracy_level` of products whose other factor has 8 bits.
const INT8: i64 = 4;

/// What an engine's `MatMulNBits` multiplies without expanding the matrix for each run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRules {
    /// The codes. Those of 4 bits, which others become, are among them.
    pub forms: &'static [CodeForm],
    /// Whether products may have packed zero points and a bias.
    pub has_zero_points: bool,
    /// Whether products that become those of 4 bits keep their activations. Otherwise these are `float32`, but with 3 bits, which no engine has.
    pub keeps_activations: bool,
    /// Whether products compute with `float32` where the graph has `float16`.
    pub widens_floats: bool,
    /// Whether the engine has `GatherBlockQuantized`.
    pub has_coded_tables: bool,
    /// Whether `MatMulInteger` gives the right sums for all codes of 8 bits.
    pub multiplies_int8: bool,
}

/// Codes of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeForm {
    /// Bits of a code.
    pub bits: u32,
    /// The least and the most elements of a group.
    pub groups: (usize, usize),
    /// Whether the activations have to be of 8 bits.
    pub needs_int8: bool,
}

impl CodeForm {
    /// Codes with all groups and activations.
    pub const fn all(bits: u32) -> Self {
        Self { bits, groups: (0, usize::MAX), needs_int8: false }
    }

    fn has(&self, node: &NodeProto, shape: &Shape) -> bool {
        let (least, most) = self.groups;
        let is_int8 = integer(node, "accuracy_level") == Some(INT8);
        self.bits == shape.bits && (least..=most).contains(&shape.group) && (is_int8 || !self.needs_int8)
    }
}

impl CodeRules {
    /// Whether the engine multiplies by the codes of a node, which has these zero points, as they are.
    pub(super) fn run(&self, node: &NodeProto, shape: &Shape, zeros: Option<Zeros>) -> bool {
        let is_plain = zeros.is_none() && bias(node).is_none();
        let has_rest = is_plain || (self.has_zero_points && zeros != Some(Zeros::Float));
        has_rest && self.forms.iter().any(|form| form.has(node, shape))
    }
}

impl Graph {
    /// Makes each `MatMulNBits` that an engine does not multiply as it is one or two products of 4 bits without zero points and bias, and
    /// sums, with equal results. Matrices that `DequantizeLinear` makes of constants become codes first.
    pub fn fit_codes(&mut self, rules: &CodeRules) {
        self.without_dequantized(rules);
        if has_products(self.graph()) {
            self.widen_sums(rules);
            self.without_zero_points(rules);
            self.fit_widths(rules);
        }
    }
}
