//! Attributes of numpy and torch, looked up once, because even a repeated import takes microseconds.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// Attributes of numpy.
pub(crate) struct Numpy {
    /// The class of its arrays.
    pub(crate) ndarray: Py<PyAny>,
    /// The class of its scalars.
    pub(crate) generic: Py<PyAny>,
    pub(crate) asarray: Py<PyAny>,
}

/// Attributes of torch.
pub(crate) struct Torch {
    tensor: Py<PyAny>,
    parameter: Py<PyAny>,
    module: Py<PyAny>,
    size: Py<PyAny>,
    pub(crate) to_dlpack: Py<PyAny>,
    pub(crate) from_dlpack: Py<PyAny>,
}

impl Numpy {
    /// `None` unless the program imported numpy. A program with a numpy array has imported it.
    pub(crate) fn imported(py: Python<'_>) -> PyResult<Option<&Self>> {
        if is_imported(py, "numpy")? { Self::import(py).map(Some) } else { Ok(None) }
    }

    pub(crate) fn import(py: Python<'_>) -> PyResult<&Self> {
        static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();
        NUMPY.get_or_try_init(py, || {
            let numpy = py.import("numpy")?;
            let of = |name: &str| Ok::<_, PyErr>(numpy.getattr(name)?.unbind());
            Ok(Self { ndarray: of("ndarray")?, generic: of("generic")?, asarray: of("asarray")? })
        })
    }
}

impl Torch {
    /// `None` unless the program imported torch. A program with a torch tensor has imported it.
    pub(crate) fn imported(py: Python<'_>) -> PyResult<Option<&Self>> {
        if is_imported(py, "torch")? { Self::import(py).map(Some) } else { Ok(None) }
    }

    /// Whether it is exactly a `Tensor` or a `Parameter`. A subclass may interpret its memory differently.
    pub(crate) fn is_plain(&self, array: &Bound<'_, PyAny>) -> bool {
        let kind = array.get_type();
        kind.is(&self.tensor) || kind.is(&self.parameter)
    }

    /// Whether it is a `Tensor`, also of a subclass.
    pub(crate) fn is_tensor(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        value.is_instance(self.tensor.bind(value.py()))
    }

    /// Whether it is a `torch.nn.Module`.
    pub(crate) fn is_module(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        value.is_instance(self.module.bind(value.py()))
    }

    /// Whether it is a `torch.Size`, a subclass of tuple.
    pub(crate) fn is_size(&self, value: &Bound<'_, PyAny>) -> bool {
        value.get_type().is(&self.size)
    }

    pub(crate) fn import(py: Python<'_>) -> PyResult<&Self> {
        static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
        TORCH.get_or_try_init(py, || {
            let dlpack = py.import("torch.utils.dlpack")?;
            let of = |name: &str| Ok::<_, PyErr>(dlpack.getattr(name)?.unbind());
            let tensor = py.import("torch")?.getattr("Tensor")?.unbind();
            let (nn, size) = (py.import("torch.nn")?, py.import("torch")?.getattr("Size")?.unbind());
            let (parameter, module) = (nn.getattr("Parameter")?.unbind(), nn.getattr("Module")?.unbind());
            Ok(Self { tensor, parameter, module, size, to_dlpack: of("to_dlpack")?, from_dlpack: of("from_dlpack")? })
        })
    }
}

fn is_imported(py: Python<'_>, name: &str) -> PyResult<bool> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = || Ok::<_, PyErr>(py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?.unbind());
    MODULES.get_or_try_init(py, modules)?.bind(py).contains(name)
}
