//! The values that `DequantizeLinear` gives: matrices that it makes of constants, and factors of products by them.

use crate::coded_product::MICROSOFT;
use crate::constants::Constants;
use crate::proto::{defined_twice, given, has_four_bits, integer, normal_domain, operator, with_bytes};
use crate::repack::Repack;
use cotensor_core::DType;
use rten_onnx::onnx::{DataLocation, DataType, GraphProto, NodeProto, TensorProto};
use std::collections::HashMap;

/// A matrix whose elements are `(code − zero point) · scale`.
#[derive(Clone)]
pub(super) struct Dequantized {
    pub(super) codes: TensorProto,
    pub(super) scales: TensorProto,
    /// The zero points, of the type of the codes; without these, they are `zero`.
    pub(super) zeros: Option<TensorProto>,
    pub(super) zero: u8,
    /// The dimensions of the codes.
    pub(super) dims: [usize; 2],
    pub(super) spread: Spread,
    /// Whether the matrix is transposed after that.
    pub(super) is_turned: bool,
}

/// Which elements have one scale and one zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// All.
    Whole,
    /// Those with one index of this dimension.
    Axis(usize),
    /// Blocks of so many elements along a dimension.
    Blocks { axis: usize, size: usize },
}

/// A factor of products whose elements have one scale and one zero point.
pub(super) struct Factor {
    /// The value with the codes.
    pub(super) codes: String,
    pub(super) scale: f32,
    /// The zero point; without one, it is 0.
    pub(super) zero: Option<TensorProto>,
}

/// The values of the main graph by name.
pub(super) struct Values {
    pub(super) matrices: HashMap<String, Dequantized>,
    pub(super) factors: HashMap<String, Factor>,
    /// The tables of `GatherBlockQuantized`, by the value that the node gives.
    pub(super) tables: HashMap<String, Dequantized>,
}

impl Values {
    /// `None` for a graph without such matrices.
    pub(super) fn of(graph: &GraphProto) -> Option<Self> {
        if !graph.node.iter().any(|node| is_dequantize(node) || is_coded_table(node)) {
            return None;
        }
        let constants = Constants::of(graph);
        let twice = defined_twice(graph);
        let mut found = Self { matrices: HashMap::new(), factors: HashMap::new(), tables: HashMap::new() };
        for node in &graph.node {
            let Some(output) = node.output.first().filter(|output| !twice.contains(*output)) else { continue };
            if node.input.iter().any(|input| twice.contains(input)) {
                continue;
            }
            if is_dequantize(node) {
                found.matrices.extend(Dequantized::of(node, &constants).map(|matrix| (output.clone(), matrix)));
                found.factors.extend(Factor::of(node, &constants).map(|factor| (output.clone(), factor)));
            } else if is_coded_table(node) {
                found.tables.extend(Dequantized::of_table(node, &constants).map(|table| (output.clone(), table)));
            } else if let Some(matrix) = is_transpose(node).then(|| found.matrices.get(&node.input[0])).flatten() {
                let turned = Dequantized { is_turned: !matrix.is_turned, ..matrix.clone() };
                found.matrices.insert(output.clone(), turned);
            }
        }
        (!found.matrices.is_empty() || !found.tables.is_empty()).then_some(found)
    }
}

fn is_dequantize(node: &NodeProto) -> bool {
    node.op_type.as_deref() == Some("DequantizeLinear")
        && matches!(normal_domain(node.domain.as_deref()), "" | MICROSOFT)
}

fn is_coded_table(node: &NodeProto) -> bool {
    node.op_type.as_deref() == Some("GatherBlockQuantized") && node.domain.as_deref() == Some(MICROSOFT)
}

/// Whether a node exchanges the two dimensions of a matrix.
fn is_transpose(node: &NodeProto) -> bool {
    let perm = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("perm"));
    operator(node) == "Transpose" && node.input.len() == 1 && perm.is_none_or(|perm| perm.ints == [1, 0])
}

/// A constant of numbers, with the name of the value: initializers are found by it. `None` for one without all of its elements.
fn constant(constants: &Constants<'_>, name: &str) -> Option<TensorProto> {
    let tensor = constants.plain(name).filter(|tensor| is_whole(tensor))?;
    let own = tensor.name.clone().filter(|_| constants.initializer(name).is_some());
    Some(TensorProto { name: Some(own.unwrap_or_else(|| name.to_owned())), ..tensor.clone() })
}

/// The constant that input number `at` of a node is. The inner `None`: the node does not have the input.
fn given_constant(node: &NodeProto, at: usize, constants: &Constants<'_>) -> Option<Option<TensorProto>> {
    match given(node, at) {
        Some(name) => constant(constants, name).map(Some),
        None => Some(None),
    }
}

/// Whether a tensor has the bytes of its shape. Those of initializers were checked when the graph was read, those of nodes were not.
fn is_whole(tensor: &TensorProto) -> bool {
    let bits = match tensor.data_type {
        Some(DataType::FLOAT) => 32,
        Some(DataType::FLOAT16) => 16,
        Some(DataType::INT8 | DataType::UINT8) => 8,
        _ if has_four_bits(tensor) => 4,
        _ => return false,
    };
    let mut dims = tensor.dims.iter().map(|&dim| usize::try_from(dim).ok());
    let count = dims.try_fold(1usize, |count, dim| count.checked_mul(dim?)).and_then(|count| count.checked_mul(bits));
    tensor.data_location == Some(DataLocation::EXTERNAL)
        || count.is_some_and(|bits| with_bytes(tensor, <[u8]>::len) == bits.div_ceil(8))
}

/// The codes of a table: bytes with two codes of 4 bits as these. Rows of zero points that do not end with a byte have another form.
fn as_codes(tensor: TensorProto, bits: i64) -> Option<TensorProto> {
    match (tensor.data_type?, bits) {
        (DataType::INT4 | DataType::UINT4, 4) | (DataType::UINT8, 8) => Some(tensor),
        (DataType::UINT8, 4) => {
            let mut dims = tensor.dims.clone();
            let columns = dims.last_mut()?;
            *columns = columns.checked_mul(2)?;
            Some(TensorProto { dims, data_type: Some(DataType::UINT4), ..tensor })
        }
        _ => None,
    }
}

/// The type of codes of 8 bits.
pub(super) fn type_of_codes(codes: &TensorProto) -> DType {
    if codes.data_type == Some(DataType::INT8) { DType::I8 } else { DType::U8 }
}

impl Dequantized {
    /// That of a node whose inputs are constants. `None` for other types and shapes.
    fn of(node: &NodeProto, constants: &Constants<'_>) -> Option<Self> {
        let codes = constant(constants, node.input.first()?)?;
        let scales = constant(constants, node.input.get(1)?)?;
        let zeros = given_constant(node, 2, constants)?;
        let is_code = matches!(codes.data_type, Some(DataType::INT8 | DataType::UINT8)) || has_four_bits(&codes);
        let is_scale = matches!(scales.data_type, Some(DataType::FLOAT | DataType::FLOAT16));
        let has_zeros_of_it =
            zeros.as_ref().is_none_or(|zeros| zeros.data_type == codes.data_type && zeros.dims == scales.dims);
        // Its default is the type of the scales.
        let gives = integer(node, "output_dtype").filter(|dtype| *dtype != 0);
        let gives_scales = gives.is_none_or(|dtype| scales.data_type.is_some_and(|own| i64::from(own.0) == dtype));
        let &[first, second] = codes.dims.as_slice() else { return None };
        let dims = [usize::try_from(first).ok()?, usize::try_from(second).ok()?];
        let spread = Spread::of(node, dims, &scales.dims)?;
        let is_known = is_code && is_scale && has_zeros_of_it && gives_scales && !dims.contains(&0);
        is_known.then_some(Self { codes, scales, zeros, zero: 0, dims, spread, is_turned: false })
    }

    /// The table of a `GatherBlockQuantized` whose entries have blocks. `None` for other types and shapes.
    fn of_table(node: &NodeProto, constants: &Constants<'_>) -> Option<Self> {
        let number = |name: &str, default: i64| integer(node, name).unwrap_or(default);
        let (bits, size) =
            (number("bits", 4), usize::try_from(number("block_size", 128)).ok().filter(|size| *size > 0)?);
        let stored = constant(constants, node.input.first()?)?;
        // Bytes have the middle code by default, types of 4 bits have 0.
        let zero = match (stored.data_type, bits) {
            (Some(DataType::UINT8), 4) => 8,
            (Some(DataType::UINT8), _) => 128,
            _ => 0,
        };
        let codes = as_codes(stored, bits)?;
        let scales = constant(constants, node.input.get(2)?)?;
        let zeros = match given_constant(node, 3, constants)? {
            Some(zeros) => Some(as_codes(zeros, bits)?),
            None => None,
        };
        let &[first, second] = codes.dims.as_slice() else { return None };
        let dims = [usize::try_from(first).ok()?, usize::try_from(second).ok()?];
        let blocks = [first, second / size as i64];
        let is_scale = matches!(scales.data_type, Some(DataType::FLOAT | DataType::FLOAT16));
        let has_zeros_of_it =
            zeros.as_ref().is_none_or(|zeros| zeros.data_type == codes.data_type && zeros.dims == blocks);
        let has_rows = number("gather_axis", 0) == 0 && matches!(number("quantize_axis", 1), 1 | -1);
        let is_known = is_scale && has_zeros_of_it && has_rows && scales.dims == blocks && !dims.contains(&0);
        let spread = Spread::Blocks { axis: 1, size };
        let is_whole = dims[1].is_multiple_of(size);
        (is_known && is_whole).then_some(Self { codes, scales, zeros, zero, dims, spread, is_turned: false })
    }

    pub(super) fn bits(&self) -> u32 {
        if has_four_bits(&self.codes) { 4 } else { 8 }
    }

    pub(super) fn is_signed(&self) -> bool {
        matches!(self.codes.data_type, Some(DataType::INT8 | DataType::INT4))
    }

    /// The type of a byte with codes: two of 4 bits have no sign.
    pub(super) fn byte_type(&self) -> DType {
        if self.bits() == 8 { type_of_codes(&self.codes) } else { DType::U8 }
    }

    /// The step that makes signed codes unsigned, which are larger by half of their number. `is_packed`: a byte has two codes of 4 bits.
    pub(super) fn unsigned(&self, is_packed: bool) -> Option<Repack> {
        let mask = match (self.bits(), is_packed) {
            (4, true) => 0x88,
            (4, false) => 0x08,
            _ => 0x80,
        };
        self.is_signed().then_some(Repack::Flipped { mask })
    }

    pub(super) fn is_float(&self) -> bool {
        self.scales.data_type == Some(DataType::FLOAT)
    }

    /// Whether all zero points are `zero`. Those of a weight are not known.
    pub(super) fn has_zero(&self, zero: u8) -> bool {
        let Some(zeros) = &self.zeros else { return zero == self.zero };
        let count = zeros.dims.iter().product::<i64>() as usize;
        with_bytes(zeros, |bytes| {
            let is_zero = |at: usize| match self.bits() {
                4 => bytes.get(at / 2).is_some_and(|byte| byte >> (4 * (at % 2)) & 15 == zero),
                _ => bytes.get(at) == Some(&zero),
            };
            !bytes.is_empty() && (0..count).all(is_zero)
        })
    }

    /// The names of the constants.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        [Some(&self.codes), Some(&self.scales), self.zeros.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|one| one.name.as_ref())
    }
}

impl Spread {
    fn of(node: &NodeProto, dims: [usize; 2], scales: &[i64]) -> Option<Self> {
        let axis = integer(node, "axis").unwrap_or(1);
        let axis = usize::try_from(if axis < 0 { axis + 2 } else { axis }).ok().filter(|axis| *axis < 2)?;
        let size = usize::try_from(integer(node, "block_size").unwrap_or(0)).ok()?;
        let has = |wanted: &[usize]| {
            scales.iter().map(|&dim| usize::try_from(dim).ok()).eq(wanted.iter().map(|&dim| Some(dim)))
        };
        if let Some(count) = dims[axis].checked_div(size) {
            let mut blocks = dims;
            blocks[axis] = count;
            return (dims[axis].is_multiple_of(size) && has(&blocks)).then_some(Self::Blocks { axis, size });
        }
        if has(&[]) || has(&[1]) {
            return Some(Self::Whole);
        }
        has(&[dims[axis]]).then_some(Self::Axis(axis))
    }
}

impl Factor {
    /// That of a node whose codes are not a constant.
    fn of(node: &NodeProto, constants: &Constants<'_>) -> Option<Self> {
        let codes = node.input.first().filter(|name| constants.plain(name).is_none())?;
        let scale = constants.plain(node.input.get(1)?).filter(|scale| scale.data_type == Some(DataType::FLOAT))?;
        let zero = given_constant(node, 2, constants)?;
        let is_code = |zero: &TensorProto| matches!(zero.data_type, Some(DataType::INT8 | DataType::UINT8));
        let is_known = zero.as_ref().is_none_or(|zero| is_code(zero) && with_bytes(zero, <[u8]>::len) == 1);
        let scale = f32::from_le_bytes(with_bytes(scale, |bytes| bytes.try_into().ok())?);
        is_known.then(|| Self { codes: codes.clone(), scale, zero })
    }

    /// Whether `MatMulInteger` multiplies by codes that are signed, or not. It has no products of signed by unsigned codes, and the type of
    /// codes without a zero point is not known.
    pub(super) fn fits(&self, is_signed: bool) -> bool {
        is_signed || self.zero.as_ref().is_some_and(|zero| zero.data_type == Some(DataType::UINT8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_two_codes_have_twice_as_many_columns() {
        let codes = |columns| {
            let stored =
                TensorProto { dims: vec![0, columns], data_type: Some(DataType::UINT8), ..TensorProto::default() };
            as_codes(stored, 4).map(|codes| codes.dims)
        };
        assert_eq!(codes(3), Some(vec![0, 6]));
        assert_eq!(codes(1 << 62), None);
    }
}
