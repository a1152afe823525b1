//! What a store tells of its daemon, and asks of it.

use super::backend::Backend;
use super::store::Store;
use crate::errors::{OrRaise, raise};
use cotensor::Error;
use cotensor_client::protocol as p;
use pyo3::prelude::*;
use std::path::PathBuf;

#[pymethods]
impl Store {
    /// The daemon's socket; ``None`` for a store inside this process.
    #[getter]
    fn socket(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        Ok(match self.backend(py)? {
            Backend::Client(store) => Some(store.socket().to_path_buf()),
            Backend::Local(_) => None,
        })
    }

    /// This process's name in the daemon's reports; ``None`` for a store inside this process.
    #[getter]
    fn client(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(match self.backend(py)? {
            Backend::Client(store) => Some(store.client().to_owned()),
            Backend::Local(_) => None,
        })
    }

    /// The identity of the daemon; ``None`` for a store inside this process. Every daemon has another one, also at the
    /// same socket. A handle of a tensor is valid with one daemon only.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(match self.backend(py)? {
            Backend::Client(store) => Some(store.epoch()),
            Backend::Local(_) => None,
        })
    }

    /// Starts the daemon's process that runs models, unless it runs. Returns its Unix socket, on which it answers HTTP below
    /// ``/v1``, and its process number.
    fn start_models(&self, py: Python<'_>) -> PyResult<(PathBuf, u32)> {
        let Backend::Client(store) = self.backend(py)? else {
            return Err(raise(py, &Error::unsupported("only the daemon's store has a process that runs models")));
        };
        let endpoint = py.detach(|| store.start_models()).or_raise(py)?;
        Ok((endpoint.socket, endpoint.pid))
    }

    /// Lets the daemon's process that runs models use onnxruntime of this installation, if it has that. Does something once for each session.
    fn offer_library(&self, py: Python<'_>) -> PyResult<()> {
        let backend = self.backend(py)?;
        py.detach(|| backend.offer_library());
        Ok(())
    }

    /// Turns the daemon's HTTP on, at ``port`` of 127.0.0.1, unless it is on already. Returns its address and the file of its
    /// token. Without a port it is 2537 + ``RANK``, or a free one if another program has that one; 0 means a free one.
    #[pyo3(signature = (port=None))]
    fn listen_http(&self, py: Python<'_>, port: Option<u16>) -> PyResult<(String, PathBuf)> {
        let Backend::Client(store) = self.backend(py)? else {
            return Err(raise(py, &Error::unsupported("only the daemon's store has HTTP")));
        };
        let endpoint = py.detach(|| store.request::<p::HttpListen>(&p::HttpListenParams { port })).or_raise(py)?;
        Ok((endpoint.address.to_string(), endpoint.token_file))
    }
}
