//! Weights of few bits: the matrices of a graph that codes can replace, the nodes that read the codes, and the forms that
//! engines run.
//!
//! A matrix has `rows × columns` elements in groups of a row. An element is `(code − middle) · scale + offset`, where the middle code
//! of `bits` bits is `2^(bits − 1)`; without offsets, these are 0. Codes lie as `MatMulNBits` of onnxruntime reads them,
//! `[rows, groups, bytes of a group]`, and scales and offsets are `float16` or `float32`
//! `[rows, groups]`:
//!
//! | node | nodes in its place |
//! |---|---|
//! | `MatMul(x, matrix)`, `Gemm(x, matrix, c)` | `MatMulNBits(x, codes, scales)`; with offsets, plus the product of the sums of groups of `x` and the offsets |
//! | `Gather(matrix, indices)` | `Gather` of codes, scales and offsets, and arithmetic |
//!
//! The rows of a rotated matrix are those of the model, rotated in blocks by Hadamard's matrix. A product rotates its other factor in the same way,
//! and a table rotates the entries that it found back: the rotation is its own inverse.
//!
//! Codes of 3 bits are two planes in each group: first the two lower bits of all codes, 4 in a byte, then the higher bits, 8 in a byte.
//!
//! A matrix that `DequantizeLinear` makes of constants has codes, too. [`Graph::fit_codes`](crate::Graph::fit_codes) puts them in its place:
//! `(code − zero point) · scale` with a scale for the whole matrix, for each row or for blocks of a row.
//!
//! No engine has `MatMulNBits` with 3 bits: such a node has the domain `cotensor`. [`Graph::fit_codes`](crate::Graph::fit_codes)
//! makes nodes that an engine does not have, or would run by expanding the matrix, products of 4-bit codes, with equal results.

mod codes;
mod dequantized;
mod find;
mod fit;
mod halves;
mod made;
mod product;
mod qdq;
mod qdq_product;
mod qdq_reader;
mod qdq_table;
mod replace;
mod rotation;
mod rules;
mod table;
mod tensors;
mod zero_points;

pub use codes::{Content, LowBits};
pub use find::Matrix;
pub use replace::LowBitGraph;
pub use rules::{CodeForm, CodeRules};
pub use tensors::CodedProduct;
