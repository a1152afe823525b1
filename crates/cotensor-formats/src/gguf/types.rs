//! The types of tensors.

use cotensor_core::{Error, Result};
use std::fmt;

/// How the elements of a tensor are stored: one by one, or in blocks of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockType(u32);

/// The number of a type, its name, and the elements and the bytes of a block, for types whose blocks are read.
type Entry = (u32, &'static str, Option<(usize, usize)>);

#[rustfmt::skip]
const TYPES: [Entry; 34] = [
    (0, "F32", Some((1, 4))), (1, "F16", Some((1, 2))), (2, "Q4_0", Some((32, 18))), (3, "Q4_1", None), (6, "Q5_0", None), (7, "Q5_1", None),
    (8, "Q8_0", Some((32, 34))), (9, "Q8_1", None), (10, "Q2_K", None), (11, "Q3_K", None), (12, "Q4_K", Some((256, 144))),
    (13, "Q5_K", None), (14, "Q6_K", Some((256, 210))), (15, "Q8_K", None), (16, "IQ2_XXS", None), (17, "IQ2_XS", None),
    (18, "IQ3_XXS", None), (19, "IQ1_S", None), (20, "IQ4_NL", None), (21, "IQ3_S", None), (22, "IQ2_S", None), (23, "IQ4_XS", None),
    (24, "I8", None), (25, "I16", None), (26, "I32", None), (27, "I64", None), (28, "F64", Some((1, 8))), (29, "IQ1_M", None),
    (30, "BF16", Some((1, 2))), (34, "TQ1_0", None), (35, "TQ2_0", None), (39, "MXFP4", None), (40, "NVFP4", None), (41, "Q1_0", None),
];

impl BlockType {
    /// Elements in `float32`.
    pub const F32: Self = Self(0);
    /// 32 codes of 4 bits with a scale.
    pub const Q4_0: Self = Self(2);
    /// 32 codes of 8 bits with a scale.
    pub const Q8_0: Self = Self(8);
    /// 256 codes of 4 bits with scales and minimums.
    pub const Q4_K: Self = Self(12);
    /// 256 codes of 6 bits with scales.
    pub const Q6_K: Self = Self(14);

    /// The type of a number in a file.
    ///
    /// # Errors
    /// `Unsupported` for a number that the format does not have.
    pub(super) fn of(number: u32) -> Result<Self> {
        let is_known = TYPES.iter().any(|(known, ..)| *known == number);
        is_known.then_some(Self(number)).ok_or_else(|| Error::unsupported(format!("the type {number} is not known")))
    }

    fn entry(self) -> &'static Entry {
        TYPES.iter().find(|(number, ..)| *number == self.0).expect("a type of the table")
    }

    /// The elements and the bytes of a block; `None` for types that are not read.
    pub fn block(self) -> Option<(usize, usize)> {
        self.entry().2
    }

    /// Whether elements are numbers in floating point, one by one.
    pub fn is_float(self) -> bool {
        self.entry().1.contains('F') && self.block().is_some_and(|(elements, _)| elements == 1)
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().1)
    }
}
