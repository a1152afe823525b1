//! Entries of a table of codes.

use super::codes::{LowBits, Names};
use super::rotation::rotated;
use crate::build::{Builder, int};
use rten_onnx::onnx::NodeProto;

/// Adds the nodes of a `Gather` of rows with `columns` elements.
pub(super) fn replace(build: &mut Builder, node: &NodeProto, names: &Names, columns: usize, low: &LowBits) {
    let (Some(indices), Some(output)) = (node.input.get(1), node.output.first()) else { return };
    let own = |part: &str| format!("{output}.{part}");
    let groups = (columns / low.group) as i64;
    let entries = build.op("Shape", &[indices], own("entries"));
    let shape_of = |build: &mut Builder, name: &str, dims: &[i64]| {
        let dims = build.ints(own(&format!("{name}.dims")), dims);
        build.op_with("Concat", &[&entries, &dims], own(&format!("{name}.shape")), vec![int("axis", 0)])
    };
    let by_group = shape_of(build, "elements", &[groups, low.group as i64]);
    let one_by_group = shape_of(build, "group", &[groups, 1]);

    let bytes = build.op("Gather", &[&names.codes, indices], own("bytes"));
    let bytes = build.as_float(&bytes, own("numbers"));
    let codes = match low.bits {
        8 => bytes,
        3 => {
            let planes = (low.group as i64) / 8;
            let low_plane = build.slice(&bytes, [0, 2 * planes], -1, own("low"));
            let high_plane = build.slice(&bytes, [2 * planes, 3 * planes], -1, own("high"));
            let low_shape = shape_of(build, "low", &[groups, 2 * planes, 1]);
            let high_shape = shape_of(build, "high", &[groups, planes, 1]);
            let low_codes = split(build, &low_plane, &low_shape, 2, &own("low"));
            let low_codes = build.op("Reshape", &[&low_codes, &by_group], own("low.all"));
            let high_bits = split(build, &high_plane, &high_shape, 1, &own("high"));
            let high_bits = build.op("Reshape", &[&high_bits, &by_group], own("high.all"));
            let four = build.float(own("four"), 4.0);
            let high_bits = build.op("Mul", &[&high_bits, &four], own("high.times_four"));
            build.op("Add", &[&low_codes, &high_bits], own("joined"))
        }
        bits => {
            let shape = shape_of(build, "bytes", &[groups, (low.group as i64) * i64::from(bits) / 8, 1]);
            split(build, &bytes, &shape, bits, &own("bytes"))
        }
    };
    let codes = build.op("Reshape", &[&codes, &by_group], own("codes"));
    let middle = build.float(own("middle"), f32::from(1u8 << (low.bits - 1)));
    let levels = build.op("Sub", &[&codes, &middle], own("levels"));
    let of_group = |build: &mut Builder, table: &str, part: &str| {
        let found = build.op("Gather", &[table, indices], own(&format!("{part}.entries")));
        build.op("Reshape", &[&found, &one_by_group], own(part))
    };
    let scales = of_group(build, &names.scales, "scales");
    let mut elements = build.op("Mul", &[&levels, &scales], own("scaled"));
    if let Some(offsets) = &names.offsets {
        let offsets = of_group(build, offsets, "offsets");
        elements = build.op("Add", &[&elements, &offsets], own("moved"));
    }
    let rows = shape_of(build, "rows", &[columns as i64]);
    let Some(block) = low.rotation else {
        return build.give("Reshape", &[&elements, &rows], output, Vec::new());
    };
    let entries = build.op("Reshape", &[&elements, &rows], own("turned"));
    let back = rotated(build, &entries, columns, block);
    build.give("Identity", &[&back], output, Vec::new());
}

/// The codes of `bits` bits in bytes that are `float32` numbers, along a new last axis. `shape` is that of the bytes, with 1 at the end.
pub(super) fn split(build: &mut Builder, bytes: &str, shape: &str, bits: u32, prefix: &str) -> String {
    let mut rest = build.op("Reshape", &[bytes, shape], format!("{prefix}.rest"));
    let base = f32::from(1u16 << bits);
    let inverse = build.float(format!("{prefix}.inverse"), 1.0 / base);
    let base = build.float(format!("{prefix}.base"), base);
    let count = 8 / bits;
    let mut parts = Vec::new();
    for number in 0..count - 1 {
        // Powers of two: every step is exact.
        let shares = build.op("Mul", &[&rest, &inverse], format!("{prefix}.shares{number}"));
        let next = build.op("Floor", &[&shares], format!("{prefix}.rest{number}"));
        let above = build.op("Mul", &[&next, &base], format!("{prefix}.above{number}"));
        parts.push(build.op("Sub", &[&rest, &above], format!("{prefix}.part{number}")));
        rest = next;
    }
    parts.push(rest);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    build.op_with("Concat", &parts, format!("{prefix}.parts"), vec![int("axis", -1)])
}
