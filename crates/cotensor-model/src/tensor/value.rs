use super::tensor_ref::TensorRef;
use crate::graph::key::array_identity;
use cotensor_core::{ContentHash, DType, Error, Result};
use cotensor_preprocess::Array;
use cotensor_store::Lease;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A tensor that flows from one stage to the next: an array or a leased tensor. Cloning shares it.
#[derive(Clone)]
pub struct Value(Arc<ValueData>);

struct ValueData {
    tensor: Tensor,
    identity: OnceLock<ContentHash>,
}

enum Tensor {
    Array(Array),
    Lease(Lease),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({} {:?})", self.dtype(), self.shape())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self(Arc::new(ValueData { tensor: Tensor::Array(array), identity: OnceLock::new() }))
    }
}

impl From<Lease> for Value {
    fn from(lease: Lease) -> Self {
        Self(Arc::new(ValueData { tensor: Tensor::Lease(lease), identity: OnceLock::new() }))
    }
}

impl Value {
    /// The tensor, without a copy.
    ///
    /// # Errors
    /// `Unsupported` for a leased tensor that is not row-major.
    pub fn tensor(&self) -> Result<TensorRef<'_>> {
        match &self.0.tensor {
            Tensor::Array(array) => Ok(array.into()),
            Tensor::Lease(lease) => TensorRef::of_lease(lease),
        }
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        match &self.0.tensor {
            Tensor::Array(array) => array.shape(),
            Tensor::Lease(lease) => lease.shape(),
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match &self.0.tensor {
            Tensor::Array(array) => array.dtype(),
            Tensor::Lease(lease) => lease.dtype(),
        }
    }

    /// The elements as `float32`. Converts a copy of elements of another floating-point type.
    ///
    /// # Errors
    /// `Invalid` for integers, `Unsupported` for a tensor on a device, or as [`Value::tensor`].
    pub fn to_f32(&self) -> Result<Cow<'_, [f32]>> {
        self.tensor()?.to_f32()
    }

    /// The elements of an `int64` value.
    ///
    /// # Errors
    /// `Invalid` for another element type, or as [`Value::to_f32`].
    pub fn as_i64(&self) -> Result<&[i64]> {
        match self.dtype() {
            DType::I64 => self.tensor()?.typed(),
            other => Err(Error::invalid(format!("int64 expected, the value has {other}"))),
        }
    }

    /// The identity of the value: its provenance if it is known, else the hash of dtype, shape and content. Equal
    /// identities are equal numbers. Computed once.
    pub fn identity(&self) -> ContentHash {
        *self.0.identity.get_or_init(|| match &self.0.tensor {
            Tensor::Lease(lease) => lease.identity(),
            Tensor::Array(array) => array_identity(array.dtype(), array.shape(), array.bytes()),
        })
    }

    /// The lease, if a store holds the value.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.0.tensor {
            Tensor::Lease(lease) => Some(lease),
            Tensor::Array(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_values_convert_to_float32() {
        let halves = Value::from(Array::new(DType::F16, [2], vec![0x3c00u16, 0xc000]).unwrap());
        assert_eq!(*halves.to_f32().unwrap(), [1.0, -2.0]);
        assert!(Value::from(Array::i64([1], vec![1]).unwrap()).to_f32().is_err());
    }
}
