//! Products by matrices that `DequantizeLinear` makes of constants.

use super::codes::{LowBits, Names};
use super::dequantized::{Dequantized, Factor, Spread, type_of_codes};
use super::made::{Form, MadeTensors};
use super::product;
use super::qdq_reader::{Orientation, Reader};
use crate::build::Builder;
use crate::proto::given;
use crate::repack::Repack;
use cotensor_core::DType;
use rten_onnx::onnx::{DataType, NodeProto, TensorProto};
use std::cell::RefCell;

/// The fewest and the most elements of a group, as powers of two.
const GROUP_BITS: (u32, u32) = (4, 8);

/// How a matrix is divided for `MatMulNBits`.
pub(super) struct Grouping {
    pub(super) orientation: Orientation,
    /// Elements of a row with one scale.
    block: usize,
    /// Elements of a group, which divide those.
    pub(super) group: usize,
}

impl Grouping {
    /// `None` for scales along the rows, and for columns without groups of a power of two.
    pub(super) fn of(reader: &Reader<'_>) -> Option<Self> {
        let orientation = reader.orientation();
        let block = match reader.matrix.spread {
            Spread::Whole => orientation.columns,
            Spread::Axis(axis) if axis == orientation.row_axis() => orientation.columns,
            Spread::Blocks { axis, size } if axis != orientation.row_axis() => size,
            Spread::Axis(_) | Spread::Blocks { .. } => return None,
        };
        let power = block.trailing_zeros();
        let group = 1 << power.min(GROUP_BITS.1);
        (power >= GROUP_BITS.0).then_some(Self { orientation, block, group })
    }

    fn groups(&self) -> usize {
        self.orientation.columns / self.group
    }

    /// The steps from the elements of scales or zero points, of `width` bytes, to one for each group of each row.
    fn spread(&self, spread: Spread, width: usize) -> Vec<Repack> {
        let Orientation { rows, columns, has_rows_first } = self.orientation;
        let blocks = columns / self.block;
        let mut steps = Vec::new();
        if blocks > 1 && !has_rows_first {
            steps.push(Repack::Turned { rows: blocks, columns: rows, width });
        }
        let of_block = self.block / self.group;
        let times = if spread == Spread::Whole { rows * of_block } else { of_block };
        if times > 1 {
            steps.push(Repack::Repeated { width, times });
        }
        steps
    }
}

/// Adds the nodes of a product by codes. `None` for a matrix that has no such form.
pub(super) fn replace(
    build: &mut Builder,
    made: &mut MadeTensors<'_>,
    node: &NodeProto,
    reader: &Reader<'_>,
) -> Option<()> {
    let (matrix, grouping) = (reader.matrix, Grouping::of(reader)?);
    let names = Names {
        codes: codes(build, made, matrix, &grouping)?,
        scales: scales(build, made, matrix, &grouping)?,
        zeros: zeros(build, made, matrix, &grouping)?,
        offsets: None,
    };
    let (bits, group) = (matrix.bits(), grouping.group);
    let low = LowBits { bits, group, scales: DType::F32, offsets: None, rotation: None, accuracy_level: 0 };
    product::replace(build, node, &names, [grouping.orientation.rows, grouping.orientation.columns], &low);
    Some(())
}

fn codes(build: &mut Builder, made: &mut MadeTensors<'_>, matrix: &Dequantized, grouping: &Grouping) -> Option<String> {
    let Orientation { rows, columns, has_rows_first } = grouping.orientation;
    let turned = match matrix.bits() {
        4 => Repack::TurnedHalves { rows: columns, columns: rows },
        _ => Repack::Turned { rows: columns, columns: rows, width: 1 },
    };
    let mut steps = if has_rows_first { vec![] } else { vec![turned] };
    steps.extend(matrix.unsigned(true));
    let dims = vec![rows as i64, grouping.groups() as i64, (grouping.group * matrix.bits() as usize / 8) as i64];
    made.of(build, &matrix.codes, Form { part: "codes", codes: Some(DType::U8), dims, steps })
}

fn scales(
    build: &mut Builder,
    made: &mut MadeTensors<'_>,
    matrix: &Dequantized,
    grouping: &Grouping,
) -> Option<String> {
    let steps = grouping.spread(matrix.spread, made.element_bytes(&matrix.scales));
    let dims = vec![grouping.orientation.rows as i64, grouping.groups() as i64];
    made.of(build, &matrix.scales, Form { part: "scales", codes: None, dims, steps })
}

/// The zero points of a product. The inner `None`: the middle code.
fn zeros(
    build: &mut Builder,
    made: &mut MadeTensors<'_>,
    matrix: &Dequantized,
    grouping: &Grouping,
) -> Option<Option<String>> {
    let bits = matrix.bits();
    let middle = if matrix.is_signed() { 0 } else { 1 << (bits - 1) };
    if matrix.has_zero(middle) {
        return Some(None);
    }
    let (rows, groups) = (grouping.orientation.rows, grouping.groups());
    let bytes = (groups * bits as usize).div_ceil(8);
    let dims = vec![rows as i64, bytes as i64];
    let Some(stored) = &matrix.zeros else {
        // Unsigned codes with the zero point 0.
        let name = Some(format!("{}.zero", matrix.codes.name.as_deref().unwrap_or_default()));
        let content = Some(RefCell::new(vec![0; rows * bytes]));
        let zeros = TensorProto { name, data_type: Some(DataType::UINT8), raw_data: content, ..TensorProto::default() };
        let form = Form { part: "points", codes: Some(DType::U8), dims, steps: vec![] };
        return made.of(build, &zeros, form).map(Some);
    };
    let mut steps = Vec::new();
    if bits == 4 {
        steps.push(Repack::Unpacked { count: stored.dims.iter().product::<i64>() as usize });
    }
    steps.extend(grouping.spread(matrix.spread, 1));
    steps.extend(matrix.unsigned(false));
    if bits == 4 {
        steps.push(Repack::Packed { columns: groups });
    }
    made.of(build, stored, Form { part: "points", codes: Some(DType::U8), dims, steps }).map(Some)
}

/// Whether a product by a matrix is one of codes of 8 bits by codes of 8 bits.
pub(super) fn is_of_integers(reader: &Reader<'_>, factor: &Factor) -> bool {
    let matrix = reader.matrix;
    let has_scale_of_row = [Spread::Whole, Spread::Axis(reader.orientation().row_axis())].contains(&matrix.spread);
    matrix.bits() == 8 && matrix.is_float() && has_scale_of_row && factor.fits(matrix.is_signed())
}

/// Adds the nodes of a product of integers, whose sums have the scales of both factors. `None` for one that is not of integers.
pub(super) fn multiply_integers(
    build: &mut Builder,
    made: &mut MadeTensors<'_>,
    node: &NodeProto,
    reader: &Reader<'_>,
    factor: &Factor,
) -> Option<()> {
    if !is_of_integers(reader, factor) {
        return None;
    }
    let (matrix, output) = (reader.matrix, node.output.first()?);
    let own = |part: &str| format!("{output}.{part}");
    let Orientation { rows, columns, has_rows_first } = reader.orientation();
    let by_row = if matrix.spread == Spread::Whole { vec![] } else { vec![rows as i64] };
    let turned = has_rows_first.then_some(Repack::Turned { rows, columns, width: 1 });
    let dims = vec![columns as i64, rows as i64];
    let kind = Some(matrix.byte_type());
    let plain = |part, codes, dims: &[i64]| Form { part, codes, dims: dims.to_vec(), steps: vec![] };
    let form = Form { part: "factor", codes: kind, dims, steps: turned.into_iter().collect() };
    let codes = made.of(build, &matrix.codes, form)?;
    let zero = match &factor.zero {
        Some(zero) => made.of(build, zero, plain("of_factor", Some(type_of_codes(zero)), &[]))?,
        None => String::new(),
    };
    let zeros = match &matrix.zeros {
        Some(zeros) if !matrix.has_zero(0) => made.of(build, zeros, plain("of_matrix", kind, &by_row))?,
        _ => String::new(),
    };
    let scales = made.of(build, &matrix.scales, plain("of_rows", None, &by_row))?;
    let mut inputs = vec![factor.codes.as_str(), &codes, &zero, &zeros];
    while inputs.last().is_some_and(|name| name.is_empty()) {
        inputs.pop();
    }
    let sums = build.op("MatMulInteger", &inputs, own("sums"));
    let sums = build.as_float(&sums, own("sums.float"));
    let scale = build.float(own("scale"), factor.scale);
    let scales = build.at_the_start(|build| build.op("Mul", &[&scale, &scales], own("scales")));
    match given(node, 2) {
        None => build.give("Mul", &[&sums, &scales], output, Vec::new()),
        Some(summand) => {
            let product = build.op("Mul", &[&sums, &scales], own("product"));
            build.give("Add", &[&product, summand], output, Vec::new());
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::low_bit::find::Use;
    use std::rc::Rc;

    fn matrix(dims: [usize; 2], spread: Spread) -> Dequantized {
        let codes = Rc::new(TensorProto { data_type: Some(DataType::INT8), ..TensorProto::default() });
        Dequantized { codes: codes.clone(), scales: codes, zeros: None, zero: 0, dims, spread, is_turned: false }
    }

    #[test]
    fn groups_are_powers_of_two_of_one_scale() {
        let group = |dims, spread| {
            let matrix = matrix(dims, spread);
            let reader = Reader { matrix: &matrix, used: Use { is_transposed: true, is_table: false } };
            Grouping::of(&reader)
                .map(|found| (found.orientation.rows, found.orientation.columns, found.group, found.groups()))
        };
        assert_eq!(group([768, 5], Spread::Whole), Some((5, 768, 256, 3)));
        assert_eq!(group([96, 5], Spread::Axis(1)), Some((5, 96, 32, 3)));
        assert_eq!(group([96, 5], Spread::Axis(0)), None);
        assert_eq!(group([96, 5], Spread::Blocks { axis: 0, size: 48 }), Some((5, 96, 16, 6)));
        assert_eq!(group([96, 5], Spread::Blocks { axis: 0, size: 8 }), None);
        assert_eq!(group([96, 64], Spread::Blocks { axis: 1, size: 32 }), None);
        assert_eq!(group([40, 5], Spread::Whole), None);
    }

    #[test]
    fn a_scale_is_there_for_each_group_of_a_row() {
        let matrix = matrix([64, 2], Spread::Blocks { axis: 0, size: 32 });
        let reader = Reader { matrix: &matrix, used: Use { is_transposed: true, is_table: false } };
        let steps = Grouping { group: 16, ..Grouping::of(&reader).unwrap() }.spread(matrix.spread, 1);
        assert_eq!(*Repack::all(&steps, &[1, 2, 3, 4]), [1, 1, 3, 3, 2, 2, 4, 4]);
    }
}
