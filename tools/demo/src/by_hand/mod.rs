//! The variant *by hand*: a program without Cotensor that opens one copy of its model and reuses its results.
//!
//! All users share one [`Model`](cotensor::model::model::Model). [`OneCopy`] keeps the results of graphs with a single
//! output, as such a program does in a variable. [`Recorder`] records the runs for the same program on onnxruntime.

mod one_copy;
mod onnxruntime;
mod record;

pub(crate) use one_copy::OneCopy;
pub use onnxruntime::Onnxruntime;
pub(crate) use onnxruntime::Peer;
pub(crate) use record::Recorder;
