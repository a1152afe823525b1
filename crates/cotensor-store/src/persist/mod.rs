//! Services whose tensors outlive the store: an observer records every change, and a later store restores the tensors.

mod observer;
mod restored;

pub use observer::StoreObserver;
pub use restored::RestoredTensor;
