//! The output of a stage that encodes an input, for a stage of another model that takes it in place of its own.

use crate::adapter::Adapter;
use crate::tensor::Value;
use cotensor_core::{Error, Result, Space};
use cotensor_preprocess::family::Medium;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The part of the input that each row of a stage describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowParts {
    /// The bytes of the text that each token covers; empty for a token that the tokenizer adds.
    Tokens(Vec<Range<usize>>),
    /// The height and the width of the preprocessed image, in pixels.
    Image(usize, usize),
    /// Equal parts of the audio that the model reads.
    Audio,
    /// Not known: the tensor came without the input.
    Unknown,
}

impl RowParts {
    /// The height and the width of the preprocessed image.
    pub(super) fn image(&self) -> Option<[usize; 2]> {
        match *self {
            RowParts::Image(height, width) => Some([height, width]),
            _ => None,
        }
    }
}

/// The output of a stage that encodes an input.
#[derive(Clone)]
pub struct Encoded {
    /// The output, `[1, rows, width]` or `[1, width]`.
    pub value: Value,
    /// What the rows describe.
    pub parts: RowParts,
    /// The space of the stage.
    pub space: Space,
}

impl fmt::Debug for Encoded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Encoded({:?} in {})", self.value.shape(), self.space)
    }
}

impl Encoded {
    /// The number of rows and of elements of a row.
    ///
    /// # Errors
    /// `Unsupported` for an output of another shape.
    pub fn size(&self) -> Result<(usize, usize)> {
        match *self.value.shape() {
            [1, width] if width > 0 => Ok((1, width)),
            [1, rows, width] if rows > 0 && width > 0 => Ok((rows, width)),
            ref shape => Err(Error::unsupported(format!("an encoder's output has rows; this one has shape {shape:?}"))),
        }
    }
}

/// The output of another model's encoder as an input.
#[derive(Clone, Debug)]
pub(crate) struct Foreign {
    pub(crate) medium: Medium,
    pub(crate) encoded: Encoded,
    /// The adapter to the space of the stage that takes the output; `None` to look it up in the store.
    pub(crate) adapter: Option<Arc<Adapter>>,
}
