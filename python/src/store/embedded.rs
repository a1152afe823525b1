//! A daemon inside this process.

use super::backend::Backend;
use super::holder::program;
use super::store::Store;
use crate::errors::{OrRaise, raise};
use crate::process::ProcessLocal;
use cotensor::Error;
use cotensor_client::settings::{SOCKET, configured};
use cotensor_daemon::http::HttpConfig;
use cotensor_daemon::{Config, Service};
use pyo3::prelude::*;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A daemon on threads of this process, until ``close()``. Other processes connect to it as to any daemon.
#[pyclass(frozen, weakref, module = "cotensor")]
pub(crate) struct Embedded {
    daemon: Mutex<Option<ProcessLocal<cotensor_daemon::Embedded>>>,
    http: Option<SocketAddr>,
    token_file: Option<PathBuf>,
}

#[pymethods]
impl Embedded {
    /// The address of its HTTP server; ``None`` without one.
    #[getter]
    fn http(&self) -> Option<String> {
        self.http.map(|address| address.to_string())
    }

    /// The file with the token for HTTP clients; ``None`` without an HTTP server.
    #[getter]
    fn token_file(&self) -> Option<PathBuf> {
        self.token_file.clone()
    }

    /// Stops the daemon and closes every connection to it.
    fn close(&self, py: Python<'_>) {
        let daemon = self.daemon.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(daemon));
    }
}

/// Connects to the daemon at ``socket``. If none listens there, starts one in this process, with HTTP at ``listen``
/// (``ADDRESS:PORT``) if that is given. Returns the store, and the daemon if this process runs it.
#[pyfunction]
#[pyo3(signature = (socket=None, *, listen=None, token_file=None, hosts=None, client=None, max_memory_mb=None))]
pub(crate) fn connect_or_embed(
    py: Python<'_>,
    socket: Option<PathBuf>,
    listen: Option<&str>,
    token_file: Option<PathBuf>,
    hosts: Option<Vec<String>>,
    client: Option<String>,
    max_memory_mb: Option<u64>,
) -> PyResult<(Store, Option<Embedded>)> {
    let mut config = Config::default();
    if let Some(socket) = socket {
        config.socket = socket;
    }
    if let Some(mb) = max_memory_mb {
        config.max_memory_bytes = mb.saturating_mul(1 << 20);
    }
    let listen = listen.map(|listen| address(py, listen, "listen")).transpose()?;
    let hosts = hosts.unwrap_or_default();
    let http = listen.map(|listen| HttpConfig { listen, token_file, hosts, ..HttpConfig::default() });
    let client = client.unwrap_or_else(|| program(py));
    let service = Service { config, http };
    let (store, embedded) = py.detach(|| cotensor_daemon::connect_or_serve(&service, &client)).or_raise(py)?;
    let embedded = embedded.map(|daemon| Embedded {
        http: daemon.http(),
        token_file: daemon.token_file().map(PathBuf::from),
        daemon: Mutex::new(Some(ProcessLocal::new(daemon))),
    });
    Ok((Store::new(Backend::Client(store)), embedded))
}

/// The Unix socket of the daemon with HTTP at ``address`` (``ADDRESS:PORT``) on this machine.
#[pyfunction]
pub(crate) fn socket_of(py: Python<'_>, address: &str) -> PyResult<PathBuf> {
    let address = self::address(py, address, "address")?;
    py.detach(|| cotensor_client::health::socket_of(address)).or_raise(py)
}

/// The default socket of the daemon.
#[pyfunction]
pub(crate) fn default_socket() -> PathBuf {
    cotensor_client::default_socket()
}

/// The socket in ``COTENSOR_SOCKET``, else in the configuration file; ``None`` without either.
#[pyfunction]
pub(crate) fn named_socket(py: Python<'_>) -> PyResult<Option<PathBuf>> {
    Ok(configured(&SOCKET).or_raise(py)?.map(PathBuf::from))
}

/// The HTTP port of this rank: 2537 + ``RANK``, or 2537 if ``GPUS_PER_NODE`` is set, because all ranks then share one
/// daemon.
#[pyfunction]
pub(crate) fn default_port(py: Python<'_>) -> PyResult<u16> {
    cotensor_daemon::http::default_port().or_raise(py)
}

fn address(py: Python<'_>, text: &str, field: &str) -> PyResult<SocketAddr> {
    let wrong =
        |_| raise(py, &Error::invalid(format!("{text:?} is not an address such as 127.0.0.1:2537")).in_field(field));
    text.parse().map_err(wrong)
}
