//! Moving tensors to spill storage (`out.rs`) and back (`back.rs`), and both at once while the storage is full (`swap.rs`).

mod back;
mod out;
mod swap;
