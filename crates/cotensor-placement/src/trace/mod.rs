//! What a program does in one period: its tensors and its operations in order.

mod generate;
mod json;
mod trace;

pub use generate::{Routing, cyclic};
pub use trace::{Operation, Tensor, TensorIndex, Trace};

#[cfg(test)]
mod tests;
