//! The values that `DequantizeLinear` gives: matrices that it makes of constants, and factors of products by them.

use crate::coded_product::MICROSOFT;
use crate::constants::Constants;
use crate::proto::{defined_twice, given, has_four_bits, integer, normal_domain, operator, with_bytes};
use crate::repack::Repack;
use cotensor_core::DType;
use rten_onnx::onnx::{DataLocation, DataType, GraphProto, NodeProto, TensorProto};
use std::collections::HashMap;
use std::rc::Rc;

/// A matrix whose elements are `(code − zero point) · scale`.
#[derive(Clone)]
pub(super) struct Dequantized {
    pub(super) codes: Rc<TensorProto>,
    pub(super) scales: Rc<TensorProto>,
    /// The zero points, of the type of the codes; without these, they are `zero`, which is 0 with them.
    pub(super) zeros: Option<Rc<TensorProto>>,
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
    pub(super) zero: Option<Rc<TensorProto>>,
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
        let mut constants = Copies { constants: Constants::of(graph), known: HashMap::new() };
        let twice = defined_twice(graph);
        let mut found = Self { matrices: HashMap::new(), factors: HashMap::new(), tables: HashMap::new() };
        for node in &graph.node {
            let Some(output) = node.output.first().filter(|output| !twice.contains(*output)) else { continue };
            if node.input.iter().any(|input| twice.contains(input)) {
                continue;
            }
            if is_dequantize(node) {
                found.matrices.extend(Dequantized::of(node, &mut constants).map(|matrix| (output.clone(), matrix)));
                found.factors.extend(Factor::of(node, &mut constants).map(|factor| (output.clone(), factor)));
            } else if is_coded_table(node) {
                found.tables.extend(Dequantized::of_table(node, &mut constants).map(|table| (output.clone(), table)));
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

/// Constants of a graph that matrices have, each copied once for all of them.
struct Copies<'g> {
    constants: Constants<'g>,
    /// By the name of the value that has the constant, and whether its bytes are two codes of 4 bits. `None` for what is no such constant.
    known: HashMap<(&'g str, bool), Option<Rc<TensorProto>>>,
}

impl Copies<'_> {
    /// A constant of numbers, with the name of the value that has it: initializers are found by it. `None` for one without all of its elements.
    fn plain(&mut self, name: &str) -> Option<Rc<TensorProto>> {
        self.copy(name, false)
    }

    /// The constant that input number `at` of a node is. The inner `None`: the node does not have the input.
    fn given(&mut self, node: &NodeProto, at: usize) -> Option<Option<Rc<TensorProto>>> {
        given(node, at).map_or(Some(None), |name| self.plain(name).map(Some))
    }

    /// The codes of a table.
    fn codes(&mut self, name: &str, bits: i64) -> Option<Rc<TensorProto>> {
        match (self.constants.plain(name)?.data_type?, bits) {
            (DataType::INT4 | DataType::UINT4, 4) | (DataType::UINT8, 8) => self.plain(name),
            (DataType::UINT8, 4) => self.copy(name, true),
            _ => None,
        }
    }

    fn copy(&mut self, name: &str, has_four_bits: bool) -> Option<Rc<TensorProto>> {
        let (name, tensor) = self.constants.named(name)?;
        let copy = || {
            let copy = is_whole(tensor).then(|| TensorProto { name: Some(name.to_owned()), ..tensor.clone() })?;
            let copy = if has_four_bits { as_four_bits(copy)? } else { copy };
            Some(Rc::new(copy))
        };
        self.known.entry((name, has_four_bits)).or_insert_with(copy).clone()
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

/// Bytes with two codes of 4 bits as these. Rows of zero points that do not end with a byte have another form.
fn as_four_bits(mut tensor: TensorProto) -> Option<TensorProto> {
    let columns = tensor.dims.last_mut()?;
    *columns = columns.checked_mul(2)?;
    Some(TensorProto { data_type: Some(DataType::UINT4), ..tensor })
}

/// The type of codes of 8 bits.
pub(super) fn type_of_codes(codes: &TensorProto) -> DType {
    if codes.data_type == Some(DataType::INT8) { DType::I8 } else { DType::U8 }
}

impl Dequantized {
    /// That of a node whose inputs are constants. `None` for other types and shapes.
    fn of(node: &NodeProto, constants: &mut Copies<'_>) -> Option<Self> {
        let codes = constants.plain(node.input.first()?)?;
        let scales = constants.plain(node.input.get(1)?)?;
        let zeros = constants.given(node, 2)?;
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
    fn of_table(node: &NodeProto, constants: &mut Copies<'_>) -> Option<Self> {
        let number = |name: &str, default: i64| integer(node, name).unwrap_or(default);
        let (bits, size) =
            (number("bits", 4), usize::try_from(number("block_size", 128)).ok().filter(|size| *size > 0)?);
        let stored = node.input.first()?;
        let has_bytes = constants.constants.has_type(stored, DataType::UINT8)?;
        let codes = constants.codes(stored, bits)?;
        let scales = constants.plain(node.input.get(2)?)?;
        let zeros = match given(node, 3) {
            Some(zeros) => Some(constants.codes(zeros, bits)?),
            None => None,
        };
        // Without zero points, bytes have the middle code, types of 4 bits have 0.
        let zero = if has_bytes && zeros.is_none() { 1 << (bits - 1) } else { 0 };
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
    fn of(node: &NodeProto, constants: &mut Copies<'_>) -> Option<Self> {
        let known = &constants.constants;
        let codes = node.input.first().filter(|name| known.plain(name).is_none())?;
        let scale = known.plain(node.input.get(1)?).filter(|scale| scale.data_type == Some(DataType::FLOAT))?;
        let zero = constants.given(node, 2)?;
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
    use crate::build::int;
    use rten_onnx::onnx::AttributeProto;
    use std::cell::RefCell;

    #[test]
    fn bytes_of_two_codes_have_twice_as_many_columns() {
        let codes = |columns| {
            let stored =
                TensorProto { dims: vec![0, columns], data_type: Some(DataType::UINT8), ..TensorProto::default() };
            as_four_bits(stored).map(|codes| codes.dims)
        };
        assert_eq!(codes(3), Some(vec![0, 6]));
        assert_eq!(codes(1 << 62), None);
    }

    /// A file may have a million nodes that read one constant of 256 MiB.
    #[test]
    fn nodes_share_the_copy_of_a_constant() {
        let tensor = |name: &str, dims: &[i64], dtype, bytes: usize| TensorProto {
            name: Some(name.to_owned()),
            dims: dims.to_vec(),
            data_type: Some(dtype),
            raw_data: Some(RefCell::new(vec![0; bytes])),
            ..TensorProto::default()
        };
        let node = |domain: &str, kind: &str, inputs: &[&str], output: &str, value: Option<TensorProto>| NodeProto {
            op_type: Some(kind.to_owned()),
            domain: Some(domain.to_owned()),
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            attribute: value
                .map(|value| AttributeProto {
                    name: Some("value".to_owned()),
                    t: Some(value),
                    ..AttributeProto::default()
                })
                .into_iter()
                .collect(),
            ..NodeProto::default()
        };
        let block = |mut node: NodeProto| {
            node.attribute.push(int("block_size", 16));
            node
        };
        let graph = GraphProto {
            node: vec![
                node("", "Constant", &[], "codes", Some(tensor("value", &[4, 16], DataType::UINT8, 64))),
                node("", "Identity", &["codes"], "same", None),
                node("", "DequantizeLinear", &["codes", "scale"], "one", None),
                node("", "DequantizeLinear", &["same", "scale"], "other", None),
                node("", "Transpose", &["other"], "turned", None),
                block(node(MICROSOFT, "GatherBlockQuantized", &["codes", "x", "scales"], "entries", None)),
                block(node(MICROSOFT, "GatherBlockQuantized", &["same", "x", "scales"], "more", None)),
            ],
            initializer: vec![tensor("scale", &[], DataType::FLOAT, 4), tensor("scales", &[4, 2], DataType::FLOAT, 32)],
            input: vec![],
            output: vec![],
            value_info: vec![],
        };
        let found = Values::of(&graph).unwrap();
        for (values, first, others) in
            [(&found.matrices, "one", &["other", "turned"][..]), (&found.tables, "entries", &["more"])]
        {
            let first = &values[first];
            assert_eq!(first.codes.name.as_deref(), Some("codes"));
            for other in others.iter().map(|&other| &values[other]) {
                assert!(Rc::ptr_eq(&first.codes, &other.codes) && Rc::ptr_eq(&first.scales, &other.scales));
            }
        }
    }
}
