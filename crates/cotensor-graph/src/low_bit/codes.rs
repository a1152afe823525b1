//! The codes of a matrix, and their tensors.

use cotensor_core::DType;

/// The codes that replace a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowBits {
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: u32,
    /// Elements of a group, of which the columns are a multiple.
    pub group: usize,
    /// The type of scales: `float16`, or `float32` for scales of other programs that are not exact in it.
    pub scales: DType,
    /// The type of offsets, if groups have them beside their scale: `float16` or `float32`.
    pub offsets: Option<DType>,
    /// The block of Hadamard's rotation of each row, if the matrix is rotated. The columns are a multiple.
    pub rotation: Option<usize>,
    /// The attribute of `MatMulNBits`: 0, or 4 for products with activations of 8 bits.
    pub accuracy_level: i64,
}

/// The content of a tensor of a [`LowBitGraph`](super::LowBitGraph).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// That of a weight, by its number in [`Graph::weights`](crate::Graph::weights).
    Weight(usize),
    /// The packed codes of a matrix, by its number among those that were replaced: `uint8` `[rows, groups, bytes]`.
    Codes(usize),
    /// Its scales: `[rows, groups]`, in the type of [`LowBits::scales`].
    Scales(usize),
    /// Its offsets: `[rows, groups]`, in the type of [`LowBits::offsets`].
    Offsets(usize),
}

/// The names of the tensors of a matrix.
#[derive(Clone)]
pub(super) struct Names {
    pub(super) codes: String,
    pub(super) scales: String,
    /// Zero points of a product by codes, which have no offsets then.
    pub(super) zeros: Option<String>,
    pub(super) offsets: Option<String>,
}
