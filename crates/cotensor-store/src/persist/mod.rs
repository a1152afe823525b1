//! Services whose tensors outlive the store.

mod observer;

pub use observer::{RestoredTensor, StoreObserver};
