"""How tensors travel in objects of Ray: as handles of the node's store, or inline when they are small."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Callable, Optional, Tuple, cast

import ray
from ray.util import register_serializer

from .._native import Tensor
from ..errors import CotensorError, OverBudgetError, UnsupportedError
from .imports import when_imported
from .process import Form, Handle, Process, node_id

#: Arrays and tensors of at most this many bytes travel in the object itself.
INLINE_BYTES_MAX = 256 << 10

#: A function and its arguments that make a value, and the value's state.
_Inline = Tuple[Callable[..., Any], Tuple[Any, ...], Any]


def register() -> None:
    """Registers the serializers in this process. Those of numpy and torch are registered when these are imported."""
    register_serializer(Tensor, serializer=_tensor, deserializer=_value)
    when_imported("numpy", lambda numpy: register_serializer(numpy.ndarray, serializer=_array, deserializer=_value))
    when_imported("torch", lambda torch: register_serializer(torch.Tensor, serializer=_torch, deserializer=_value))


def _tensor(tensor: Tensor) -> "Handle | _Inline":
    return _handle(lambda process: process.handle_of(tensor)) or _inline(tensor)


def _array(array: Any) -> "Handle | _Inline":
    if array.nbytes <= INLINE_BYTES_MAX or array.dtype.hasobject or array.dtype.names is not None:
        return _inline(array)
    return _published(array, "numpy") or _inline(array)


def _torch(tensor: Any) -> "Handle | _Inline":
    torch = sys.modules["torch"]
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    if not is_plain or tensor.nbytes <= INLINE_BYTES_MAX or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        return _inline(tensor)
    return _published(tensor, "torch") or _inline(tensor)


def _published(value: Any, form: Form) -> Optional[Handle]:
    try:
        return _handle(lambda process: process.publish(value, form))
    except UnsupportedError:
        # A dtype that is not shared, such as dates.
        return None
    except OverBudgetError as error:
        warnings.warn(f"a tensor travels inside of its object: {error}", ResourceWarning, stacklevel=2)
        return None


def _handle(make: Callable[[Process], Handle]) -> Optional[Handle]:
    """A handle; None where Ray does not count the references in it, as in a pickled function."""
    if not ray._private.worker.global_worker.get_serialization_context().is_in_band_serialization():
        return None
    return make(Process.current())


def _inline(value: Any) -> _Inline:
    reduced = value.__reduce_ex__(5)
    return reduced[0], reduced[1], reduced[2] if len(reduced) > 2 else None


def _value(data: "Handle | _Inline") -> Any:
    if isinstance(data, Handle):
        try:
            return Process.current().open(data)
        except CotensorError as error:
            # Not before Python 3.11.
            if hasattr(error, "add_note"):
                error.add_note(f"opening {data.name} of node {data.node} on node {node_id()}")
            raise
    function, arguments, state = data
    value = function(*arguments)
    if state is not None:
        cast(Any, value).__setstate__(state)
    return value
