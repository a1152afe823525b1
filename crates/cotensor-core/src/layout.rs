use crate::{ContentHash, DType, Error, Hasher, Result};
use std::ops::Range;

/// The most dimensions a tensor may have.
pub const RANK_MAX: usize = 16;

/// The most bytes a tensor or segment may span: 8 TiB, far from any overflow.
pub const TENSOR_BYTES_MAX: u64 = 1 << 43;

/// One dimension of a view: `len` elements from `start` on, each `step` after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// First index, in elements.
    pub start: usize,
    /// The number of elements.
    pub len: usize,
    /// The distance between two elements; at least 1.
    pub step: usize,
}

/// How a tensor's elements lie in its segment: dtype, shape, strides and byte offset.
///
/// Strides are in elements and never negative; the offset is in bytes. Every layout that exists
/// has been checked: its [`byte_range`](Layout::byte_range) cannot overflow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    dtype: DType,
    /// The dimensions, then the strides: one allocation, because a store may have hundreds of thousands of layouts.
    dims: Box<[usize]>,
    offset_bytes: usize,
}

impl Layout {
    /// A row-major tensor at the start of its segment.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for more than [`RANK_MAX`] dimensions or [`TENSOR_BYTES_MAX`]
    /// bytes.
    pub fn contiguous(dtype: DType, shape: &[usize]) -> Result<Self> {
        let mut strides = vec![1usize; shape.len()];
        for axis in (1..shape.len()).rev() {
            // A dimension of zero must not hide the overflow of the others.
            strides[axis - 1] = strides[axis].checked_mul(shape[axis].max(1)).ok_or_else(|| too_large(dtype, shape))?;
        }
        Self::strided(dtype, shape, &strides, 0)
    }

    /// A tensor with given strides (elements) from `offset_bytes` on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when ranks differ, limits are exceeded or the offset is not a
    /// multiple of the element size.
    pub fn strided(dtype: DType, shape: &[usize], strides: &[usize], offset_bytes: usize) -> Result<Self> {
        if shape.len() > RANK_MAX {
            return Err(Error::invalid(format!("{} dimensions; at most {RANK_MAX} are supported", shape.len())));
        }
        if shape.len() != strides.len() {
            return Err(Error::invalid(format!("{} strides for {} dimensions", strides.len(), shape.len())));
        }
        if !offset_bytes.is_multiple_of(dtype.size_bytes()) {
            return Err(Error::invalid(format!("byte offset {offset_bytes} is not a multiple of {dtype}'s size")));
        }
        let layout = Self { dtype, dims: [shape, strides].concat().into(), offset_bytes };
        layout.checked_end().filter(|&end| end as u64 <= TENSOR_BYTES_MAX).ok_or_else(|| too_large(dtype, shape))?;
        shape
            .iter()
            .try_fold(dtype.size_bytes(), |total, &dim| total.checked_mul(dim.max(1)))
            .filter(|&total| total as u64 <= TENSOR_BYTES_MAX)
            .ok_or_else(|| too_large(dtype, shape))?;
        Ok(layout)
    }

    fn checked_end(&self) -> Option<usize> {
        let mut last = 0usize;
        for (&dim, &stride) in self.shape().iter().zip(self.strides()) {
            last = last.checked_add(dim.saturating_sub(1).checked_mul(stride)?)?;
        }
        last.checked_add(1)?.checked_mul(self.dtype.size_bytes())?.checked_add(self.offset_bytes)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions, in elements; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.dims[..self.rank()]
    }

    /// The distance between neighbours along each dimension, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.dims[self.rank()..]
    }

    fn rank(&self) -> usize {
        self.dims.len() / 2
    }

    /// Where the first element lies, in bytes from the start of the segment.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    /// The bytes that the elements fill, gaps not counted.
    pub fn size_bytes(&self) -> usize {
        self.len() * self.dtype.size_bytes()
    }

    /// The identity of a tensor by its content: the hash of dtype, shape, strides, and `bytes` from the first element
    /// to the end of the last.
    pub fn identity(&self, bytes: &[u8]) -> ContentHash {
        let mut hasher = Hasher::new("cotensor content v1");
        hasher.field(self.dtype.name().as_bytes()).number(self.shape().len() as u64);
        for (&dim, &stride) in self.shape().iter().zip(self.strides()) {
            hasher.number(dim as u64).number(stride as u64);
        }
        hasher.field(bytes).finish()
    }

    /// The bytes of the segment from the first element to the end of the last, gaps included.
    pub fn byte_range(&self) -> Range<usize> {
        if self.is_empty() {
            return self.offset_bytes..self.offset_bytes;
        }
        // Checked when the layout was made.
        self.offset_bytes..self.checked_end().unwrap_or(self.offset_bytes)
    }

    /// Whether the elements are row-major without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&dim, &stride) in self.shape().iter().zip(self.strides()).rev() {
            if dim == 0 {
                return true;
            }
            if dim != 1 && stride != expected {
                return false;
            }
            expected *= dim;
        }
        true
    }

    /// A strided view: one [`Slice`] for each dimension. No byte is copied.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) naming the dimension that is out of bounds.
    pub fn view(&self, slices: &[Slice]) -> Result<Self> {
        if slices.len() != self.shape().len() {
            return Err(Error::invalid(format!(
                "a view of {} dimensions on a tensor of {}",
                slices.len(),
                self.shape().len()
            )));
        }
        let mut shape = Vec::with_capacity(slices.len());
        let mut strides = Vec::with_capacity(slices.len());
        let mut offset = 0usize;
        for (axis, (slice, (&dim, &stride))) in slices.iter().zip(self.shape().iter().zip(self.strides())).enumerate() {
            let outside = || {
                Error::invalid(format!(
                    "dimension {axis}: start {}, length {}, step {} is outside 0..{dim}",
                    slice.start, slice.len, slice.step
                ))
            };
            let span = slice.len.saturating_sub(1).checked_mul(slice.step).ok_or_else(outside)?;
            let end = slice.start.checked_add(span).ok_or_else(outside)?;
            if slice.step == 0 || slice.start > dim || (slice.len > 0 && end >= dim) {
                return Err(outside());
            }
            if slice.len > 0 {
                offset += slice.start * stride;
            }
            shape.push(slice.len);
            strides.push(stride.checked_mul(slice.step).ok_or_else(outside)?);
        }
        let empty = shape.contains(&0);
        let offset_bytes = if empty { self.offset_bytes } else { self.offset_bytes + offset * self.dtype.size_bytes() };
        Self::strided(self.dtype, &shape, &strides, offset_bytes)
    }

    /// The same elements with dimension `a` and `b` exchanged. No byte is copied.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when there is no such dimension.
    pub fn transposed(&self, a: usize, b: usize) -> Result<Self> {
        if a >= self.rank() || b >= self.rank() {
            return Err(Error::invalid(format!(
                "dimensions {a} and {b} of a tensor with {} do not exist",
                self.shape().len()
            )));
        }
        let mut layout = self.clone();
        let (shape, strides) = layout.dims.split_at_mut(self.rank());
        shape.swap(a, b);
        strides.swap(a, b);
        Ok(layout)
    }

    /// The same layout `bytes` further on in its segment.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when that is beyond any segment or misaligned.
    pub fn moved(&self, bytes: usize) -> Result<Self> {
        let offset = self.offset_bytes.checked_add(bytes).ok_or_else(|| too_large(self.dtype, self.shape()))?;
        Self::strided(self.dtype, self.shape(), self.strides(), offset)
    }
}

fn too_large(dtype: DType, shape: &[usize]) -> Error {
    Error::invalid(format!("a {dtype} tensor of shape {shape:?} spans more than {TENSOR_BYTES_MAX} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(start: usize, len: usize, step: usize) -> Slice {
        Slice { start, len, step }
    }

    #[test]
    fn contiguous_layouts_are_row_major() {
        let layout = Layout::contiguous(DType::F32, &[2, 3, 4]).unwrap();
        assert_eq!((layout.strides(), layout.len(), layout.size_bytes()), (&[12, 4, 1][..], 24, 96));
        assert!(layout.is_contiguous());
        let scalar = Layout::contiguous(DType::F64, &[]).unwrap();
        assert_eq!((scalar.len(), scalar.byte_range()), (1, 0..8));
        let empty = Layout::contiguous(DType::F32, &[3, 0]).unwrap();
        assert!(empty.is_empty() && empty.is_contiguous() && empty.byte_range().is_empty());
    }

    #[test]
    fn overflowing_shapes_are_refused() {
        for shape in [&[usize::MAX, 2][..], &[1 << 22, 1 << 22], &[0, usize::MAX, usize::MAX], &[1; RANK_MAX + 1]] {
            assert!(Layout::contiguous(DType::F32, shape).is_err(), "{shape:?}");
        }
        assert!(Layout::strided(DType::F32, &[2], &[usize::MAX], 0).is_err());
        assert!(Layout::strided(DType::F32, &[2], &[1], 2).is_err());
    }

    #[test]
    fn view_of_a_view_composes() {
        let layout = Layout::contiguous(DType::I32, &[4, 6]).unwrap();
        let view = layout.view(&[slice(1, 3, 1), slice(0, 3, 2)]).unwrap();
        assert_eq!((view.shape(), view.strides(), view.offset_bytes()), (&[3, 3][..], &[6, 2][..], 24));
        assert!(!view.is_contiguous());
        let inner = view.view(&[slice(2, 1, 1), slice(1, 2, 1)]).unwrap();
        assert_eq!(inner.offset_bytes(), (3 * 6 + 2) * 4);
        assert_eq!(inner.byte_range(), 80..92);
        assert_eq!(layout.transposed(0, 1).unwrap().strides(), [1, 6]);
    }

    #[test]
    fn views_out_of_bounds_are_refused() {
        let layout = Layout::contiguous(DType::I32, &[4, 6]).unwrap();
        for bad in
            [slice(4, 1, 1), slice(0, 5, 1), slice(0, 3, 2), slice(0, 1, 0), slice(5, 0, 1), slice(1, usize::MAX, 2)]
        {
            assert!(layout.view(&[bad, slice(0, 6, 1)]).is_err(), "{bad:?}");
        }
        assert!(layout.view(&[slice(4, 0, 1), slice(0, 6, 1)]).unwrap().is_empty());
        assert!(layout.view(&[slice(0, 4, 1)]).is_err());
    }
}
