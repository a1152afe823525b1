use cotensor_core::{DType, Error, Result};

/// A row-major array in memory of its own: what preprocessing makes and an engine returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    shape: Vec<usize>,
    data: ArrayData,
}

/// The elements of an [`Array`]. Integers are 32-bit, as engines want token ids.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrayData {
    /// `float32`.
    F32(Vec<f32>),
    /// `int32`.
    I32(Vec<i32>),
}

/// A borrowed [`Array`]: shape and elements lie wherever they lie, a store's segment included.
#[derive(Clone, Copy, Debug)]
pub enum ArrayView<'a> {
    /// `float32`.
    F32(&'a [usize], &'a [f32]),
    /// `int32`.
    I32(&'a [usize], &'a [i32]),
}

impl Array {
    /// Wraps elements.
    ///
    /// # Errors
    /// `Invalid` when the shape does not have as many elements.
    pub fn new(shape: Vec<usize>, data: ArrayData) -> Result<Self> {
        let len = match &data {
            ArrayData::F32(values) => values.len(),
            ArrayData::I32(values) => values.len(),
        };
        let wanted = shape.iter().try_fold(1usize, |total, &dim| total.checked_mul(dim));
        if wanted != Some(len) {
            return Err(Error::invalid(format!("{len} elements do not fill shape {shape:?}")));
        }
        Ok(Self { shape, data })
    }

    /// A `float32` array.
    ///
    /// # Errors
    /// As [`Array::new`].
    pub fn f32(shape: impl Into<Vec<usize>>, values: Vec<f32>) -> Result<Self> {
        Self::new(shape.into(), ArrayData::F32(values))
    }

    /// An `int32` array.
    ///
    /// # Errors
    /// As [`Array::new`].
    pub fn i32(shape: impl Into<Vec<usize>>, values: Vec<i32>) -> Result<Self> {
        Self::new(shape.into(), ArrayData::I32(values))
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self.data {
            ArrayData::F32(_) => DType::F32,
            ArrayData::I32(_) => DType::I32,
        }
    }

    /// The elements.
    pub fn data(&self) -> &ArrayData {
        &self.data
    }

    /// The array, borrowed.
    pub fn view(&self) -> ArrayView<'_> {
        match &self.data {
            ArrayData::F32(values) => ArrayView::F32(&self.shape, values),
            ArrayData::I32(values) => ArrayView::I32(&self.shape, values),
        }
    }

    /// The elements as `float32`.
    ///
    /// # Errors
    /// `Invalid` when they are not.
    pub fn as_f32(&self) -> Result<&[f32]> {
        match &self.data {
            ArrayData::F32(values) => Ok(values),
            ArrayData::I32(_) => Err(Error::invalid("float32 expected, the array holds int32")),
        }
    }

    /// The elements as `int32`.
    ///
    /// # Errors
    /// `Invalid` when they are not.
    pub fn as_i32(&self) -> Result<&[i32]> {
        match &self.data {
            ArrayData::I32(values) => Ok(values),
            ArrayData::F32(_) => Err(Error::invalid("int32 expected, the array holds float32")),
        }
    }
}

impl ArrayView<'_> {
    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        match self {
            ArrayView::F32(shape, _) | ArrayView::I32(shape, _) => shape,
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            ArrayView::F32(..) => DType::F32,
            ArrayView::I32(..) => DType::I32,
        }
    }
}
