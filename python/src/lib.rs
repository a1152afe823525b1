//! The extension module `cotensor._native`: one file for each class, conversions at the edge, and no logic of its own.
//!
//! Python is let go around everything that may wait or copies much. What a forked child inherits of its parent's it neither
//! uses nor gives back (`process.rs`).
#![allow(unsafe_code, reason = "the outermost layer: addresses come from and go to Python")]
#![deny(unsafe_op_in_unsafe_fn)]

mod arg;
mod arrays;
mod claim;
mod command;
mod dlpack;
mod draft;
mod embed;
mod errors;
mod functions;
mod gather;
mod handle;
mod index;
mod interrupt;
mod manifest;
mod modules;
mod process;
mod sharing;
mod source;
mod store;
mod tensor;
mod window;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::arrays::tensor_of;
    #[pymodule_export]
    use super::claim::{Ticket, content_hash};
    #[pymodule_export]
    use super::command::main;
    #[pymodule_export]
    use super::draft::Draft;
    #[pymodule_export]
    use super::embed::{Embedded, connect_or_embed, default_port, default_socket, socket_of};
    #[pymodule_export]
    use super::functions::{Call, Functions, Pending, Provider, RemoteObject, Task, begin_functions, end_functions};
    #[pymodule_export]
    use super::manifest::{encode_manifest, read_manifest};
    #[pymodule_export]
    use super::sharing::{PooledModel, ResourcePool, SharedTensor, SharedTensorView, TensorSharingManager};
    #[pymodule_export]
    use super::store::Store;
    #[pymodule_export]
    use super::tensor::{Tensor, published_at};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
