//! The extension module `cotensor._native`: thin classes over the library, one file for each, and conversions.
//!
//! Every wait and every large copy runs detached from Python. A forked child neither uses nor releases what belongs to
//! its parent (`process.rs`).
//! Every array keeps the lease of its tensor: an array is a private mapping (`export/tensor_mapping.rs`) that a tensor (`store/tensor.rs`) gives.
#![allow(unsafe_code, reason = "the outermost layer: addresses come from and go to Python")]
#![deny(unsafe_op_in_unsafe_fn)]

mod args;
mod channel;
mod command;
mod device_share;
mod dlpack;
mod driver;
mod errors;
mod exception_args;
mod export;
mod functions;
mod held_lease;
mod import;
mod imports;
mod interrupt;
mod local_models;
mod model_files;
mod process;
mod producing;
mod program_strategy;
mod release;
mod settings;
mod sharing;
mod store;
mod streaming;
mod units;
mod waits;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::channel::frame::Frame;
    #[pymodule_export]
    use super::channel::loan::FrameLoan;
    #[pymodule_export]
    use super::channel::producer::Channel;
    #[pymodule_export]
    use super::channel::reader::ChannelReader;
    #[pymodule_export]
    use super::command::main;
    #[pymodule_export]
    use super::device_share::DeviceShare;
    #[pymodule_export]
    use super::driver::{Driver, divide_operations};
    #[pymodule_export]
    use super::export::device::cuda_device;
    #[pymodule_export]
    use super::functions::{
        Call, CompletionQueue, Functions, Provider, RemoteObject, Task, reset_functions, stop_functions,
    };
    #[pymodule_export]
    use super::local_models::LocalModels;
    #[pymodule_export]
    use super::model_files::model_files;
    #[pymodule_export]
    use super::producing::allocator_failure;
    #[pymodule_export]
    use super::sharing::{PooledModel, ResourcePool, SharedTensor, SharedTensorView, TensorSharingManager};
    #[pymodule_export]
    use super::store::builder::TensorBuilder;
    #[pymodule_export]
    use super::store::change_queue::ChangeQueue;
    #[pymodule_export]
    use super::store::daemon::{default_port, own_socket, port_of_rank, start_daemon};
    #[pymodule_export]
    use super::store::key::content_hash;
    #[pymodule_export]
    use super::store::lookup::{as_tensor, published_at, shared_pages};
    #[pymodule_export]
    use super::store::manifest::{encode_manifest, read_manifest};
    #[pymodule_export]
    use super::store::resident::ResidentCopies;
    #[pymodule_export]
    use super::store::save::save_file;
    #[pymodule_export]
    use super::store::store::Store;
    #[pymodule_export]
    use super::store::tensor::Tensor;
    #[pymodule_export]
    use super::store::ticket::Ticket;
    #[pymodule_export]
    use super::store::watch::{Change, Watch};
    #[pymodule_export]
    use super::streaming::{SoundBytes, SpeechStream};
    #[pymodule_export]
    use super::units::{parse_rate, parse_size, parse_time};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::waits::log_waits();
        // Packages of this environment include the library of the fast engine, if it is installed.
        let prefix = module.py().import("sys")?.getattr("prefix")?.extract()?;
        cotensor::model::engine::search_python(prefix);
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
