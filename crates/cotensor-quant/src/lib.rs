//! Quantized weights: matrices whose elements are codes of 2, 3, 4 or 8 bits, with a scale for each group of a row.
//!
//! A [`QuantTensor`] has `rows × columns` elements. Each row is a sequence of groups of 16 to 256 elements, and an element is
//! `(code − zero) · scale + offset`. The codes lie as the operator `MatMulNBits` of onnxruntime has them: `[rows, groups, bytes of a group]`,
//! lowest bits first. Three bits, which the operator does not have, are a plane of 2 bits and then a plane of 1 bit.
//!
//! | [`Scheme`] | scale | offset | bits for each weight beside the codes, groups of 64 |
//! |---|---|---|---|
//! | `round` | the largest magnitude of the group | 0 | 0.25 |
//! | `search`, the default | least squares, over several roundings | 0 | 0.25 |
//! | `affine` | least squares | least squares | 0.5 |
//! | `two_level` | small integers times one float16 for 256 elements | the same | 0.63, 0.44, 0.5 for 2, 3, 4 bits |
//!
//! With the second moments of the inputs of a product, [`quantize_for`] gives codes whose errors compensate each other, and
//! [`InputMoments::relative_error`] is the error of the product's result.
//!
//! [`GgufBlocks`], [`GptqLinear`], [`AwqLinear`] and [`OnnxProduct`] have matrices that other programs quantized, with exactly their codes: [`RepackedMatrix`].
//!
//! Pure Rust without files, threads, clocks and unsafe code. Equal inputs give equal codes on every processor: vector instructions are
//! chosen at run time, and every path adds in the same order.

mod codes;
mod encode;
mod expand;
mod hadamard;
mod halves;
mod inputs;
mod lanes;
mod members;
mod repack;
mod scales;
mod scheme;
mod spec;
mod tensor;

pub use hadamard::rotate;
pub use inputs::{InputFactor, InputMoments};
pub use members::Member;
pub use repack::{AwqLinear, GgufBlocks, GptqLinear, OnnxProduct, RepackedMatrix, StoredScales};
pub use rten_simd::f16;
pub use scheme::{quantize, quantize_for};
pub use spec::{GROUPS, QuantSpec, Scheme, Width};
pub use tensor::{QuantTensor, relative_error};
