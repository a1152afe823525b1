//! A program's share of a device's memory, for `cotensor.tensorref`.

use crate::errors::OrRaise;
use crate::interrupt::seconds;
use crate::process::ProcessLocal;
use crate::settings::warn_of_unknown_keys;
use crate::store::holder::program;
use cotensor_client::DeviceNeeds;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

/// The longest single wait.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// A share of a device's memory, which the daemon's broker divides among programs. ``close()`` gives it back.
///
/// ``device`` is an identity that is equal in all programs. Only the creation waits for the daemon, for two seconds at most.
/// While no daemon answers, the share stays as it is; a thread joins the next daemon.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct DeviceShare {
    share: ProcessLocal<cotensor_client::DeviceShare>,
}

impl DeviceShare {
    fn share(&self, py: Python<'_>) -> PyResult<&cotensor_client::DeviceShare> {
        self.share.get(py, "share of a device")
    }
}

#[pymethods]
impl DeviceShare {
    /// Joins the programs on a device of ``capacity`` bytes; ``demand``: bytes with which the program runs best;
    /// ``smallest``: bytes without which it does not run well.
    #[new]
    #[pyo3(signature = (device, capacity, demand, smallest, socket=None))]
    fn new(
        py: Python<'_>,
        device: &str,
        capacity: u64,
        demand: u64,
        smallest: u64,
        socket: Option<PathBuf>,
    ) -> PyResult<Self> {
        warn_of_unknown_keys(py)?;
        let client = program(py);
        let socket = socket.map_or_else(cotensor_client::configured_socket, Ok).or_raise(py)?;
        let needs = DeviceNeeds { demand_bytes: demand, smallest_bytes: smallest };
        let joined = py.detach(|| cotensor_client::DeviceShare::join(&socket, &client, device, capacity, needs));
        Ok(Self { share: ProcessLocal::new(joined.or_raise(py)?) })
    }

    /// Bytes that the program may use.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.share(py)?.share().0)
    }

    /// Whether a daemon answers.
    #[getter]
    fn connected(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.share(py)?.is_connected())
    }

    /// Waits until there are more than ``changes`` changes, ``close()`` is called, or ``timeout`` seconds have passed.
    /// Returns the bytes and the number of changes.
    fn wait(&self, py: Python<'_>, changes: u64, timeout: f64) -> PyResult<(u64, u64)> {
        let (share, timeout) = (self.share(py)?, seconds(py, Some(timeout))?);
        let timeout = timeout.unwrap_or(WAIT_MAX).min(WAIT_MAX);
        Ok(py.detach(|| share.wait(changes, timeout)))
    }

    /// The program uses no more than ``share`` bytes. Only an acknowledged share is given to others.
    fn acknowledge(&self, py: Python<'_>, share: u64) -> PyResult<()> {
        let own = self.share(py)?;
        py.detach(|| own.acknowledge(share));
        Ok(())
    }

    /// Reports activity and needs; at most every 50 ms.
    fn report(&self, py: Python<'_>, demand: u64, smallest: u64) -> PyResult<()> {
        let share = self.share(py)?;
        py.detach(|| share.report(DeviceNeeds { demand_bytes: demand, smallest_bytes: smallest }));
        Ok(())
    }

    /// Gives the share back. ``wait()`` returns in other threads.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let share = self.share(py)?;
        py.detach(|| share.close());
        Ok(())
    }
}
