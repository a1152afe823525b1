//! Python's operators on classes with methods `numpy` and `torch`: each is the operator of the numpy array, or of the
//! torch tensor where the other operand is one.
//!
//! The library's rules decide about dtypes, broadcasting and other operands. A result is a new array. Conversions to a
//! number take one element.

use crate::imports::Torch;
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// The numpy array on the memory of `object`.
fn array<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    object.call_method0("numpy")
}

/// The array of the library of the other operand.
fn beside<'py>(object: &Bound<'py, PyAny>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match Torch::imported(object.py())? {
        Some(torch) if torch.is_tensor(other)? => object.call_method0("torch"),
        _ => array(object),
    }
}

/// The number of elements.
fn len(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let shape: Vec<usize> = object.getattr("shape")?.extract()?;
    Ok(shape.iter().product())
}

fn apply<'py>(name: &str, left: &Bound<'py, PyAny>, right: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let module = if name == "divmod" { "builtins" } else { "operator" };
    left.py().import(module)?.call_method1(name, (left, right))
}

pub(crate) fn compare<'py>(
    object: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
    op: CompareOp,
) -> PyResult<Bound<'py, PyAny>> {
    beside(object, other)?.rich_compare(other, op)
}

/// `object` operator `other`, by the name of the operator's function in Python's module `operator`.
pub(crate) fn binary<'py>(
    object: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
    name: &str,
) -> PyResult<Bound<'py, PyAny>> {
    apply(name, &beside(object, other)?, other)
}

/// `other` operator `object`.
pub(crate) fn reflected<'py>(
    object: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
    name: &str,
) -> PyResult<Bound<'py, PyAny>> {
    apply(name, other, &beside(object, other)?)
}

/// The array if it can be written.
///
/// # Errors
/// `TypeError` for published memory.
fn writable<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if let Some(device) = object.getattr_opt("device")?
        && device.extract::<String>().is_ok_and(|device| device.starts_with("cuda"))
    {
        return Err(read_only());
    }
    let array = array(object)?;
    if array.getattr("flags")?.getattr("writeable")?.extract()? { Ok(array) } else { Err(read_only()) }
}

fn read_only() -> PyErr {
    let way = "write into a copy, tensor.numpy().copy() (on a GPU, tensor.torch().clone()), or publish a new version";
    PyTypeError::new_err(format!("a published tensor is read-only: {way}"))
}

/// A power without a modulo; arrays have none with one.
pub(crate) fn power<'py>(
    object: &Bound<'py, PyAny>,
    modulo: &Bound<'py, PyAny>,
    compute: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    if modulo.is_none() { compute() } else { Ok(object.py().NotImplemented().into_bound(object.py())) }
}

/// `object` operator`=` `other`, in the memory of `object`.
pub(crate) fn in_place(object: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
    writable(object)?;
    apply(name, &beside(object, other)?, other).map(drop)
}

pub(crate) fn set_item(object: &Bound<'_, PyAny>, index: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    writable(object)?.set_item(index, value)
}

/// Always an error: elements of an array are not deleted.
pub(crate) fn no_deletion() -> PyErr {
    PyTypeError::new_err("elements of a tensor are not deleted: publish what remains, numpy.delete(tensor, …)")
}

pub(crate) fn unary<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("operator")?.call_method1(name, (array(object)?,))
}

/// Whether an element equals `value`.
pub(crate) fn contains(object: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    beside(object, value)?.contains(value)
}

/// The one element as a Python number.
///
/// # Errors
/// `TypeError` for any other number of elements.
fn number<'py>(object: &Bound<'py, PyAny>, conversion: &str) -> PyResult<Bound<'py, PyAny>> {
    let size = len(object)?;
    if size != 1 {
        let way = "take one with an index, or use numpy() or torch()";
        return Err(PyTypeError::new_err(format!("{conversion}() of a tensor of {size} elements: {way}")));
    }
    if object.hasattr("item")? { object.call_method0("item") } else { array(object)?.call_method0("item") }
}

/// The number as an instance of a class of Python's module `builtins`.
pub(crate) fn convert<'py>(object: &Bound<'py, PyAny>, class: &str) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("builtins")?.call_method1(class, (number(object, class)?,))
}

/// numpy's rule: one element is true unless it is zero; several have no truth.
pub(crate) fn truth(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let size = len(object)?;
    if size != 1 {
        let way = "use tensor.numpy().any() or .all(); len(tensor) and `tensor is None` are other questions";
        return Err(PyValueError::new_err(format!("the truth of a tensor of {size} elements is ambiguous: {way}")));
    }
    number(object, "bool")?.is_truthy()
}

/// Always an error. `bytearray(tensor)`, which asks for an index first, then copies the bytes.
pub(crate) fn no_index() -> PyErr {
    PyTypeError::new_err("a tensor is not an index: use int(tensor), or tensor.numpy() for an array of indices")
}

/// `format(tensor, specification)`: of the number, for a tensor without dimensions.
pub(crate) fn format<'py>(object: &Bound<'py, PyAny>, specification: &str) -> PyResult<Bound<'py, PyAny>> {
    if specification.is_empty() {
        return Ok(object.str()?.into_any());
    }
    let dims: usize = object.getattr("shape")?.len()?;
    if dims > 0 {
        let way = "format a number, such as tensor[0], or tensor.item() for one element";
        let message = format!("a tensor of {dims} dimensions has no format {specification:?}: {way}");
        return Err(PyTypeError::new_err(message));
    }
    object.py().import("builtins")?.call_method1("format", (number(object, "format")?, specification))
}

/// Adds the operators to a class with `numpy()`, `torch()` and `shape`, apart from the truth of an object. `contains` is
/// the function for `in`.
macro_rules! array_operators {
    ($class:ty, contains = $contains:path) => {
        $crate::export::operators::array_operators!(@with $class, $contains:
            __add__ __radd__ __iadd__ "add" "iadd",
            __sub__ __rsub__ __isub__ "sub" "isub",
            __mul__ __rmul__ __imul__ "mul" "imul",
            __matmul__ __rmatmul__ __imatmul__ "matmul" "imatmul",
            __truediv__ __rtruediv__ __itruediv__ "truediv" "itruediv",
            __floordiv__ __rfloordiv__ __ifloordiv__ "floordiv" "ifloordiv",
            __mod__ __rmod__ __imod__ "mod" "imod",
            __lshift__ __rlshift__ __ilshift__ "lshift" "ilshift",
            __rshift__ __rrshift__ __irshift__ "rshift" "irshift",
            __and__ __rand__ __iand__ "and_" "iand",
            __xor__ __rxor__ __ixor__ "xor" "ixor",
            __or__ __ror__ __ior__ "or_" "ior"
        );
    };
    (@with $class:ty, $contains:path: $($left:ident $right:ident $into:ident $name:literal $in_place:literal),*) => {
        const _: () = {
            use pyo3::basic::CompareOp;
            use pyo3::prelude::*;
            use $crate::export::operators;

            type Object<'a, 'py> = &'a Bound<'py, PyAny>;
            type Computed<'py> = PyResult<Bound<'py, PyAny>>;

            #[pymethods]
            impl $class {
                fn __richcmp__<'py>(slf: &Bound<'py, Self>, other: Object<'_, 'py>, op: CompareOp) -> Computed<'py> {
                    operators::compare(slf, other, op)
                }

                /// By identity, as torch's tensors: sets and dicts of tensors hold objects, not values.
                fn __hash__(slf: &Bound<'_, Self>) -> isize {
                    // Objects are aligned to 16 bytes.
                    (slf.as_ptr() as isize) >> 4
                }

                fn __int__<'py>(slf: &Bound<'py, Self>) -> Computed<'py> {
                    operators::convert(slf, "int")
                }

                fn __float__<'py>(slf: &Bound<'py, Self>) -> Computed<'py> {
                    operators::convert(slf, "float")
                }

                fn __complex__<'py>(slf: &Bound<'py, Self>) -> Computed<'py> {
                    operators::convert(slf, "complex")
                }

                fn __index__(&self) -> PyResult<usize> {
                    Err(operators::no_index())
                }

                fn __format__<'py>(slf: &Bound<'py, Self>, specification: &str) -> Computed<'py> {
                    operators::format(slf, specification)
                }

                fn __contains__(slf: &Bound<'_, Self>, value: Object<'_, '_>) -> PyResult<bool> {
                    $contains(slf, value)
                }

                fn __setitem__(slf: &Bound<'_, Self>, index: Object<'_, '_>, value: Object<'_, '_>) -> PyResult<()> {
                    operators::set_item(slf, index, value)
                }

                fn __delitem__(&self, _index: Object<'_, '_>) -> PyResult<()> {
                    Err(operators::no_deletion())
                }

                fn __neg__<'py>(slf: &Bound<'py, Self>) -> Computed<'py> {
                    operators::unary(slf, "neg")
                }

                fn __pos__<'py>(slf: &Bound<'py, Self>) -> Computed<'py> {
                    operators::unary(slf, "pos")
                }

                fn __abs__<'py>(slf: &Bound<'py, Self>) -> Computed<'py> {
                    operators::unary(slf, "abs")
                }

                fn __invert__<'py>(slf: &Bound<'py, Self>) -> Computed<'py> {
                    operators::unary(slf, "invert")
                }

                fn __divmod__<'py>(slf: &Bound<'py, Self>, other: Object<'_, 'py>) -> Computed<'py> {
                    operators::binary(slf, other, "divmod")
                }

                fn __rdivmod__<'py>(slf: &Bound<'py, Self>, other: Object<'_, 'py>) -> Computed<'py> {
                    operators::reflected(slf, other, "divmod")
                }

                fn __pow__<'py>(
                    slf: &Bound<'py, Self>,
                    other: Object<'_, 'py>,
                    modulo: Object<'_, 'py>,
                ) -> Computed<'py> {
                    operators::power(slf, modulo, || operators::binary(slf, other, "pow"))
                }

                fn __rpow__<'py>(
                    slf: &Bound<'py, Self>,
                    other: Object<'_, 'py>,
                    modulo: Object<'_, 'py>,
                ) -> Computed<'py> {
                    operators::power(slf, modulo, || operators::reflected(slf, other, "pow"))
                }

                fn __ipow__(slf: &Bound<'_, Self>, other: Object<'_, '_>, _modulo: Object<'_, '_>) -> PyResult<()> {
                    operators::in_place(slf, other, "ipow")
                }

                $(
                    fn $left<'py>(slf: &Bound<'py, Self>, other: Object<'_, 'py>) -> Computed<'py> {
                        operators::binary(slf, other, $name)
                    }

                    fn $right<'py>(slf: &Bound<'py, Self>, other: Object<'_, 'py>) -> Computed<'py> {
                        operators::reflected(slf, other, $name)
                    }

                    fn $into(slf: &Bound<'_, Self>, other: Object<'_, '_>) -> PyResult<()> {
                        operators::in_place(slf, other, $in_place)
                    }
                )*
            }
        };
    };
}
pub(crate) use array_operators;
