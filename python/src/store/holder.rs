//! The name under which this program holds tensors.

use cotensor::Store;
use cotensor_store::Holder;
use pyo3::prelude::*;
use std::sync::Arc;

/// The holder `name`, by default this program.
pub(crate) fn holder(py: Python<'_>, store: &Arc<dyn Store>, name: Option<&str>) -> Holder {
    name.map_or_else(|| store.holder(&program(py)), |name| store.holder(name))
}

/// This program's name for reports: the file name of `sys.argv[0]`, or `python`.
pub(crate) fn program(py: Python<'_>) -> String {
    let name = || -> PyResult<String> {
        let first: String = py.import("sys")?.getattr("argv")?.get_item(0)?.extract()?;
        let name = std::path::Path::new(&first).file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(name.filter(|name| !name.is_empty() && name != "-c").unwrap_or_else(|| "python".to_owned()))
    };
    name().unwrap_or_else(|_| "python".to_owned())
}
