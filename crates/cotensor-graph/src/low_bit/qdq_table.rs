//! Entries of tables that `DequantizeLinear` makes of constants, and of those of `GatherBlockQuantized`.

use super::dequantized::{Dequantized, Spread};
use super::made::{Form, MadeTensors};
use super::table::split;
use crate::build::{Builder, int};
use crate::repack::Repack;
use cotensor_core::DType;
use rten_onnx::onnx::{DataType, NodeProto, TensorProto};

/// Adds the nodes of a `Gather` or a `GatherBlockQuantized`: entries of codes, and of scales and zero points that differ between entries. `None` for a table with
/// blocks over several entries, and for rows of 4 bits that do not end with a byte.
pub(super) fn replace(
    build: &mut Builder,
    made: &mut MadeTensors<'_>,
    node: &NodeProto,
    matrix: &Dequantized,
) -> Option<()> {
    let [entries, columns] = matrix.dims;
    let block = match matrix.spread {
        Spread::Whole | Spread::Axis(1) => None,
        Spread::Axis(_) => Some(columns),
        Spread::Blocks { axis: 1, size } => Some(size),
        Spread::Blocks { .. } => return None,
    };
    let indices = node.input.get(1).filter(|_| !matrix.is_turned)?;
    if matrix.bits() == 4 && !columns.is_multiple_of(2) {
        return None;
    }
    let table = Table { entries: entries as i64, columns: columns as i64, block: block.map(|size| size as i64) };
    table.add(build, made, node, indices, matrix)
}

struct Table {
    entries: i64,
    columns: i64,
    /// Elements of an entry with one scale; `None` if all entries have the same scales.
    block: Option<i64>,
}

impl Table {
    fn add(
        &self,
        build: &mut Builder,
        made: &mut MadeTensors<'_>,
        node: &NodeProto,
        indices: &str,
        matrix: &Dequantized,
    ) -> Option<()> {
        let output = node.output.first()?;
        let own = |part: &str| format!("{output}.{part}");
        let codes = self.codes(build, made, matrix)?;
        // Codes of 4 bits are unsigned: those that were signed are larger by 8.
        let bias = f32::from(matrix.zero) + if matrix.bits() == 4 && matrix.is_signed() { 8.0 } else { 0.0 };
        let zeros = match &matrix.zeros {
            Some(zeros) if !matrix.has_zero(0) => Some(self.zeros(build, made, matrix, zeros)?),
            _ => None,
        };
        let scales = self.by_entry(build, made, &matrix.scales, None, "of_entries", vec![])?;

        let shape = build.op("Shape", &[indices], own("entries"));
        let shape_of = |build: &mut Builder, name: &str, dims: &[i64]| {
            let dims = build.ints(own(&format!("{name}.dims")), dims);
            build.op_with("Concat", &[&shape, &dims], own(&format!("{name}.shape")), vec![int("axis", 0)])
        };
        let numbers = build.op("Gather", &[&codes, indices], own("codes"));
        let mut numbers = build.as_float(&numbers, own("numbers"));
        if matrix.bits() == 4 {
            let bytes = shape_of(build, "bytes", &[self.columns / 2, 1]);
            numbers = split(build, &numbers, &bytes, 4, &own("bytes"));
        }
        let blocks = match self.block {
            Some(size) => [self.columns / size, size],
            None => [1, self.columns],
        };
        let by_block = shape_of(build, "blocks", &blocks);
        numbers = build.op("Reshape", &[&numbers, &by_block], own("by_block"));
        let one_by_block = self.block.map(|_| shape_of(build, "block", &[blocks[0], 1]));
        let of_entries = |build: &mut Builder, table: &str, part: &str| match &one_by_block {
            Some(shape) => {
                let found = build.op("Gather", &[table, indices], own(&format!("{part}.found")));
                build.op("Reshape", &[&found, shape], own(&format!("{part}.by_block")))
            }
            None => table.to_owned(),
        };
        if let Some(zeros) = zeros {
            let zeros = of_entries(build, &zeros, "zeros");
            let zeros = build.as_float(&zeros, own("zeros.float"));
            numbers = build.op("Sub", &[&numbers, &zeros], own("above"));
        } else if bias != 0.0 {
            let bias = build.float(own("bias"), bias);
            numbers = build.op("Sub", &[&numbers, &bias], own("above"));
        }
        let scales = of_entries(build, &scales, "scales");
        let scales = if matrix.is_float() { scales } else { build.as_float(&scales, own("scales.float")) };
        let elements = build.op("Mul", &[&numbers, &scales], own("elements"));
        let rows = shape_of(build, "rows", &[self.columns]);
        if matrix.is_float() {
            build.give("Reshape", &[&elements, &rows], output, Vec::new());
        } else {
            let elements = build.op("Reshape", &[&elements, &rows], own("wide"));
            build.give("Cast", &[&elements], output, vec![int("to", i64::from(DataType::FLOAT16.0))]);
        }
        Some(())
    }

    fn codes(&self, build: &mut Builder, made: &mut MadeTensors<'_>, matrix: &Dequantized) -> Option<String> {
        let (columns, step) =
            if matrix.bits() == 4 { (self.columns / 2, matrix.unsigned(true)) } else { (self.columns, None) };
        let (dims, steps) = (vec![self.entries, columns], step.into_iter().collect());
        made.of(build, &matrix.codes, Form { part: "codes", codes: Some(matrix.byte_type()), dims, steps })
    }

    /// Zero points in the numbers of the codes, one in a byte.
    fn zeros(
        &self,
        build: &mut Builder,
        made: &mut MadeTensors<'_>,
        matrix: &Dequantized,
        zeros: &TensorProto,
    ) -> Option<String> {
        let mut steps = Vec::new();
        if matrix.bits() == 4 {
            steps.push(Repack::Unpacked { count: zeros.dims.iter().product::<i64>() as usize });
            steps.extend(matrix.unsigned(false));
        }
        self.by_entry(build, made, zeros, Some(matrix.byte_type()), "points", steps)
    }

    /// A constant with one element for each block of each entry, or for each column or all elements.
    fn by_entry(
        &self,
        build: &mut Builder,
        made: &mut MadeTensors<'_>,
        stored: &TensorProto,
        codes: Option<DType>,
        part: &str,
        steps: Vec<Repack>,
    ) -> Option<String> {
        let dims = match self.block {
            Some(size) => vec![self.entries, self.columns / size],
            None => stored.dims.clone(),
        };
        made.of(build, stored, Form { part, codes, dims, steps })
    }
}
