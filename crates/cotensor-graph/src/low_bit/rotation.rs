//! Hadamard's rotation of what products multiply, and of entries of tables.

use crate::build::{Builder, int};

/// The beginning of the name of the matrix, which is not a matrix of the model.
const HADAMARD: &str = "cotensor.hadamard.";

/// Whether a weight is the matrix of rotations.
pub(super) fn is_rotation(weight: &str) -> bool {
    weight.starts_with(HADAMARD)
}

/// The value `x` with each block of its last dimension, of `columns` elements, rotated. All nodes of a graph that read the value rotated
/// share it.
pub(super) fn rotated(build: &mut Builder, x: &str, columns: usize, block: usize) -> String {
    build.once(format!("{x} in blocks of {block}"), |build| {
        let outer = build.shape_without_last(x, &format!("{x}.outer"));
        let inner = build.ints(format!("{x}.blocks.dims"), &[(columns / block) as i64, block as i64]);
        let shape = build.op_with("Concat", &[&outer, &inner], format!("{x}.blocks.shape"), vec![int("axis", 0)]);
        let blocks = build.op("Reshape", &[x, &shape], format!("{x}.blocks"));
        let matrix = matrix(build, block);
        let blocks = build.op("MatMul", &[&blocks, &matrix], format!("{x}.blocks.rotated"));
        let whole = build.op("Shape", &[x], format!("{x}.shape"));
        build.op("Reshape", &[&blocks, &whole], format!("{x}.rotated"))
    })
}

/// The matrix of a rotation, once for all graphs: Hadamard's in Sylvester's order, with rows of length 1.
fn matrix(build: &mut Builder, block: usize) -> String {
    build.once_for_all(format!("{HADAMARD}{block}"), |build, name| {
        let norm = 1.0 / (block as f32).sqrt();
        let sign = |at: usize| if ((at / block) & (at % block)).count_ones().is_multiple_of(2) { norm } else { -norm };
        let values: Vec<f32> = (0..block * block).map(sign).collect();
        build.floats(name, &[block, block], &values)
    })
}
