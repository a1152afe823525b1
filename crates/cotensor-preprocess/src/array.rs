use bytemuck::{AnyBitPattern, Pod};
use cotensor_core::{DType, Error, Result};
use std::fmt;
use std::sync::Arc;

/// A row-major tensor in host memory of its own. Preprocessing and engines make arrays. Cloning shares the elements.
#[derive(Clone)]
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    elements: Arc<dyn Elements>,
}

/// The elements of an array, of any type.
trait Elements: Send + Sync {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<T: Pod + Send + Sync> Elements for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }
}

impl Array {
    /// An array of `elements`. `T` has the size of `dtype`: `u8` for `bool`, `u16` with the bits for `float16` and
    /// `bfloat16`.
    ///
    /// # Errors
    /// `Invalid` when `T` has another size than `dtype`, or when `shape` has another number of elements.
    pub fn new<T>(dtype: DType, shape: impl Into<Vec<usize>>, elements: Vec<T>) -> Result<Self>
    where
        T: Pod + Send + Sync,
    {
        let shape = shape.into();
        if size_of::<T>() != dtype.size_bytes() {
            return Err(Error::invalid(format!("elements of {} bytes are not {dtype}", size_of::<T>())));
        }
        let expected = shape.iter().try_fold(1usize, |total, &dim| total.checked_mul(dim));
        if expected != Some(elements.len()) {
            return Err(Error::invalid(format!("{} elements do not fill shape {shape:?}", elements.len())));
        }
        Ok(Self { dtype, shape, elements: Arc::new(elements) })
    }

    /// An array of zeros.
    ///
    /// # Errors
    /// `Invalid` for a shape with too many elements.
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        let count = shape.iter().try_fold(1usize, |total, &dim| total.checked_mul(dim));
        let count = count.filter(|count| count.checked_mul(8).is_some_and(|bytes| bytes <= isize::MAX as usize));
        let count = count.ok_or_else(|| Error::invalid(format!("shape {shape:?} has too many elements")))?;
        match dtype.size_bytes() {
            1 => Self::new(dtype, shape, vec![0u8; count]),
            2 => Self::new(dtype, shape, vec![0u16; count]),
            4 => Self::new(dtype, shape, vec![0u32; count]),
            _ => Self::new(dtype, shape, vec![0u64; count]),
        }
    }

    /// A `float32` array.
    ///
    /// # Errors
    /// As [`Array::new`].
    pub fn f32(shape: impl Into<Vec<usize>>, elements: Vec<f32>) -> Result<Self> {
        Self::new(DType::F32, shape, elements)
    }

    /// An `int32` array.
    ///
    /// # Errors
    /// As [`Array::new`].
    pub fn i32(shape: impl Into<Vec<usize>>, elements: Vec<i32>) -> Result<Self> {
        Self::new(DType::I32, shape, elements)
    }

    /// An `int64` array.
    ///
    /// # Errors
    /// As [`Array::new`].
    pub fn i64(shape: impl Into<Vec<usize>>, elements: Vec<i64>) -> Result<Self> {
        Self::new(DType::I64, shape, elements)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        self.elements.bytes()
    }

    /// The elements as bytes, to write; `None` when another array shares them.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(Arc::get_mut(&mut self.elements)?.bytes_mut())
    }

    /// The elements as numbers of the size of the element type.
    ///
    /// # Errors
    /// `Invalid` when `T` has another size.
    pub fn typed<T: AnyBitPattern>(&self) -> Result<&[T]> {
        if size_of::<T>() != self.dtype.size_bytes() {
            return Err(Error::invalid(format!("{} has no elements of {} bytes", self.dtype, size_of::<T>())));
        }
        bytemuck::try_cast_slice(self.bytes()).map_err(|error| Error::invalid(error.to_string()))
    }

    /// The elements of a `float32` array.
    ///
    /// # Errors
    /// `Invalid` for another element type.
    pub fn as_f32(&self) -> Result<&[f32]> {
        self.expect(DType::F32)?.typed()
    }

    /// The elements of an `int64` array.
    ///
    /// # Errors
    /// `Invalid` for another element type.
    pub fn as_i64(&self) -> Result<&[i64]> {
        self.expect(DType::I64)?.typed()
    }

    fn expect(&self, dtype: DType) -> Result<&Self> {
        if self.dtype == dtype {
            Ok(self)
        } else {
            Err(Error::invalid(format!("{dtype} expected, the array has {}", self.dtype)))
        }
    }
}

/// Arrays are equal if type, shape and bits are equal.
impl PartialEq for Array {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} {:?})", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_has_the_dtype_that_it_was_made_with() {
        let half = Array::new(DType::F16, [2], vec![0x3c00u16, 0]).unwrap();
        assert_eq!((half.dtype(), half.typed::<u16>().unwrap(), half.bytes().len()), (DType::F16, &[0x3c00, 0][..], 4));
        let flags = Array::new(DType::Bool, [1, 2], vec![1u8, 0]).unwrap();
        assert_eq!((flags.shape(), flags.bytes()), (&[1, 2][..], &[1, 0][..]));
        assert!(half.as_f32().is_err() && half.typed::<u32>().is_err());
        assert_eq!(Array::i64([1], vec![-1]).unwrap().as_i64().unwrap(), [-1]);
        assert!(Array::new(DType::I64, [1], vec![1i32]).is_err() && Array::f32([2], vec![1.0]).is_err());
        assert!(Array::f32([usize::MAX, 2], vec![1.0]).is_err());
    }

    #[test]
    fn elements_are_written_until_they_are_shared() {
        let mut array = Array::zeros(DType::F32, [2]).unwrap();
        array.bytes_mut().unwrap()[4..].copy_from_slice(&1.5f32.to_ne_bytes());
        let shared = array.clone();
        assert!(array.bytes_mut().is_none());
        assert_eq!(array.as_f32().unwrap(), [0.0, 1.5]);
        assert!(shared == array && Array::zeros(DType::I64, [usize::MAX / 8, 1]).is_err());
    }
}
