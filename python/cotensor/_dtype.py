"""The class of the ``dtype`` of tensors."""

from __future__ import annotations

from typing import Any, Optional

_BUILTIN = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


class DType(str):
    """The name of an element type, such as ``float32``.

    It equals the name, and the dtypes and scalar types of numpy, ml_dtypes, torch and JAX for this type:
    ``tensor.dtype == numpy.float32``, ``tensor.dtype == torch.float32``.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, other)
        name = _name_of(other)
        return NotImplemented if name is None else str.__eq__(self, name)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = str.__hash__

    @property
    def kind(self) -> str:
        """As that of ``numpy.dtype``, which scipy reads: ``b``, ``i``, ``u``, ``f`` or ``c``."""
        return "f" if self == "bfloat16" else self[0]


def _name_of(described: Any) -> Optional[str]:
    """The name of another library's dtype in native byte order; None for other objects."""
    if isinstance(described, type):
        return _name_of_class(described)
    module = type(described).__module__.partition(".")[0]
    if module == "torch":
        return str(described).partition(".")[2]
    # A scalar type of JAX has its numpy dtype.
    described = getattr(described, "dtype", described) if module in ("jax", "jaxlib") else described
    if getattr(described, "byteorder", "") in ("=", "|", "<"):
        return str(getattr(described, "name", "")) or None
    return None


def _name_of_class(described: Any) -> Optional[str]:
    """The name of a scalar type: Python's, or that of a library. Other classes may have the same name."""
    module = described.__module__.partition(".")[0]
    if module == "builtins":
        return next((name for kind, name in _BUILTIN.items() if kind is described), None)
    if module not in ("numpy", "ml_dtypes", "jax", "jaxlib"):
        return None
    name = str(described.__name__)
    # numpy's names of C types are those of a type of equal size too.
    return {"bool_": "bool", "longlong": "int64", "ulonglong": "uint64"}.get(name, name)
