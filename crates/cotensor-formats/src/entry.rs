//! The description of one tensor in a file.

use cotensor_core::{DType, Layout, Result};

/// Metadata of one tensor in a file.
#[derive(Clone, Debug)]
pub struct FileTensor {
    /// The name in the file; empty where the format has no names.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    pub(crate) big_endian: bool,
    /// Whether the file has column-major order, in which the first index runs fastest.
    pub(crate) column_major: bool,
    /// Offset of the first byte from the end of the header, in bytes.
    pub(crate) offset: u64,
}

impl FileTensor {
    /// A tensor of a [`Raw`](crate::Format::Raw) file: row-major, little-endian.
    pub fn raw(dtype: DType, shape: Vec<usize>) -> Self {
        Self { name: String::new(), dtype, shape, big_endian: false, column_major: false, offset: 0 }
    }

    /// The size of the elements, in bytes.
    ///
    /// # Errors
    /// `Invalid` for a shape whose size overflows.
    pub fn size_bytes(&self) -> Result<usize> {
        Ok(Layout::contiguous(self.dtype, &self.shape).map_err(|error| error.in_field("shape"))?.size_bytes())
    }
}
