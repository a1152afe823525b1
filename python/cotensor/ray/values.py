"""Arguments and results of calls between nodes: tensors in them become handles, small ones numpy arrays."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any, Callable, Optional

from .._native import RemoteObject, Tensor
from ..errors import UnsupportedError
from .handle import Form, Handle

#: Arrays and tensors of at most this many bytes travel in the object or the message itself.
INLINE_BYTES_MAX = 256 << 10
_PLAIN = (type(None), bool, int, float, str, bytes, bytearray)


def sent(value: Any, handle_of: Callable[[Any], Handle]) -> Any:
    """The value as it travels. ``handle_of`` makes the handle of a tensor or an array.

    Raises :class:`UnsupportedError` for a value that does not cross between nodes.
    """
    if isinstance(value, _PLAIN):
        return value
    if type(value) in (list, tuple):
        return type(value)(sent(each, handle_of) for each in value)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, sent(each, handle_of)) for key, each in value.items())
    if isinstance(value, RemoteObject):
        raise UnsupportedError("an object of a provider stays on the provider's node: call its functions there")
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic) and not isinstance(value, (numpy.void, numpy.datetime64)):
        return value
    if isinstance(value, Tensor) or hasattr(value, "__dlpack__"):
        array = small(value)
        return handle_of(value) if array is None else array
    raise UnsupportedError(f"{type(value).__module__}.{type(value).__qualname__}: such a value does not cross between nodes")


def small(value: Any) -> Optional[Any]:
    """A numpy array of a tensor or an array, if it is small, and numpy has its dtype."""
    if value.nbytes > INLINE_BYTES_MAX:
        return None
    import numpy

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach()
    if isinstance(value, Tensor) and value.members():
        return None
    try:
        array = numpy.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return None
    # Of other packages, such as bfloat16, which the other process may lack.
    return array if array.dtype.kind in "biufc" else None


def received(value: Any, opened: Callable[[Handle], Any], array: Callable[[Any], Any]) -> Any:
    """The value of what :func:`sent` returned. ``opened`` opens handles, ``array`` converts small arrays."""
    if isinstance(value, Handle):
        return opened(value)
    if type(value) in (list, tuple):
        return type(value)(received(each, opened, array) for each in value)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, received(each, opened, array)) for key, each in value.items())
    numpy = sys.modules.get("numpy")
    return array(value) if numpy is not None and isinstance(value, numpy.ndarray) else value


def form_of(tensors: str) -> Form:
    """As what tensors arrive, by the option of a client."""
    if tensors == "auto":
        return "torch" if "torch" in sys.modules else "numpy"
    return "tensor" if tensors == "cotensor" else "torch" if tensors == "torch" else "numpy"
