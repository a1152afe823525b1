//! The files of models on this machine.

use crate::args;
use crate::errors::OrRaise;
use cotensor::Error;
use cotensor::hub::{Hub, Settings, files_of};
use pyo3::prelude::*;
use std::path::PathBuf;

/// A path below the folder, its length in bytes, and whether it is a link out of the folder.
type ListedFile = (String, u64, bool);

/// The folder of the model ``name``, a path relative to ``base`` or a name on the hub, and the files in it that this program reads:
/// the path of each in the folder, its bytes, and whether it is a link to a file that is neither there nor a blob of the hub's
/// cache. Without ``variant`` (``fp16``), the graphs are those of the first variant that the model has. Files of the hub's cache are verified. Uses no network.
#[pyfunction]
#[pyo3(signature = (name, base, variant=None))]
pub(crate) fn model_files(
    py: Python<'_>,
    #[pyo3(from_py_with = args::model_name)] name: PathBuf,
    #[pyo3(from_py_with = args::models)] base: PathBuf,
    #[pyo3(from_py_with = args::variant)] variant: Option<String>,
) -> PyResult<(PathBuf, Vec<ListedFile>)> {
    let find = || -> Result<_, Error> {
        let hub = Hub::new(Settings { offline: true, ..Settings::from_env() });
        let folder = hub.folder(&name, &base, variant.as_deref())?;
        let files = files_of(&folder, variant.as_deref())?;
        Ok((folder, files.into_iter().map(|file| (file.path, file.bytes, file.is_outside)).collect()))
    };
    py.detach(find).or_raise(py)
}
