//! Products by codes as graphs have them: the attributes and tensors of `MatMulNBits`, and whether they fit each other.

mod check;
mod node;

pub(crate) use check::{check, unchecked};
pub(crate) use node::{BIAS, GROUP_INDICES, Shape, ZERO_POINTS, Zeros, bias, has_products, is_product, zeros_of};

/// The domain of `MatMulNBits`.
pub(crate) const MICROSOFT: &str = "com.microsoft";
/// The domain of `MatMulNBits` with 3 bits.
pub(crate) const COTENSOR: &str = "cotensor";
