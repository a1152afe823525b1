use cotensor_core::{ContentHash, DType, Error, Hasher, Result};
use cotensor_preprocess::{Array, ArrayData, ArrayView};
use cotensor_store::Lease;
use std::sync::{Arc, OnceLock};

/// A tensor on its way from one stage to the next. Cloning shares it.
#[derive(Clone)]
pub struct Value(Arc<Inner>);

struct Inner {
    held: Held,
    identity: OnceLock<ContentHash>,
}

enum Held {
    Array(Array),
    Lease(Lease),
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self(Arc::new(Inner { held: Held::Array(array), identity: OnceLock::new() }))
    }
}

impl From<Lease> for Value {
    fn from(lease: Lease) -> Self {
        Self(Arc::new(Inner { held: Held::Lease(lease), identity: OnceLock::new() }))
    }
}

impl Value {
    /// The elements where they lie; nothing is copied.
    ///
    /// # Errors
    /// `Unsupported` for a leased tensor that is on a device, strided, or of a type other than `float32` and `int32`.
    pub fn view(&self) -> Result<ArrayView<'_>> {
        match &self.0.held {
            Held::Array(array) => Ok(array.view()),
            Held::Lease(lease) => match lease.dtype() {
                DType::F32 => Ok(ArrayView::F32(lease.shape(), lease.typed::<f32>()?)),
                DType::I32 => Ok(ArrayView::I32(lease.shape(), lease.typed::<i32>()?)),
                other => {
                    Err(Error::unsupported(format!("{}: stages read float32 and int32, not {other}", lease.name())))
                }
            },
        }
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        match &self.0.held {
            Held::Array(array) => array.shape(),
            Held::Lease(lease) => lease.shape(),
        }
    }

    /// The elements as `float32`.
    ///
    /// # Errors
    /// `Invalid` when they are of another type, or as [`Value::view`].
    pub fn as_f32(&self) -> Result<&[f32]> {
        match self.view()? {
            ArrayView::F32(_, values) => Ok(values),
            ArrayView::I32(..) => Err(Error::invalid("float32 expected, the value holds int32")),
        }
    }

    /// The elements as `int32`.
    ///
    /// # Errors
    /// `Invalid` when they are of another type, or as [`Value::view`].
    pub fn as_i32(&self) -> Result<&[i32]> {
        match self.view()? {
            ArrayView::I32(_, values) => Ok(values),
            ArrayView::F32(..) => Err(Error::invalid("int32 expected, the value holds float32")),
        }
    }

    /// What the value is: how it was made, where that is known, else its content with dtype and shape.
    /// Equal identities are equal numbers. Computed once.
    pub fn identity(&self) -> ContentHash {
        *self.0.identity.get_or_init(|| match &self.0.held {
            Held::Lease(lease) => lease.identity(),
            Held::Array(array) => {
                let bytes = array_bytes(array);
                let mut hasher = Hasher::new("cotensor array v1");
                hasher.field(array.dtype().name().as_bytes()).number(array.shape().len() as u64);
                for &dim in array.shape() {
                    hasher.number(dim as u64);
                }
                hasher.field(bytes).finish()
            }
        })
    }

    /// The lease, when the store holds the value.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.0.held {
            Held::Lease(lease) => Some(lease),
            Held::Array(_) => None,
        }
    }
}

/// The elements of `array` as bytes.
pub(crate) fn array_bytes(array: &Array) -> &[u8] {
    match array.data() {
        ArrayData::F32(values) => bytemuck::cast_slice(values),
        ArrayData::I32(values) => bytemuck::cast_slice(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_depends_on_type_shape_and_content() {
        let identity = |array: Array| Value::from(array).identity();
        let a = identity(Array::f32([2, 2], vec![0.0; 4]).unwrap());
        assert_eq!(a, identity(Array::f32([2, 2], vec![0.0; 4]).unwrap()));
        assert_ne!(a, identity(Array::f32([4], vec![0.0; 4]).unwrap()));
        assert_ne!(a, identity(Array::i32([2, 2], vec![0; 4]).unwrap()));
        assert_ne!(a, identity(Array::f32([2, 2], vec![0.0, 0.0, 0.0, 1.0]).unwrap()));
    }
}
