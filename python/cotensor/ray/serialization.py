"""How tensors travel in objects of Ray: as handles of the node's store, or inline when they are small."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from types import FrameType
from typing import Any, Callable, Optional, Tuple, cast

import ray

from .._native import Tensor, __version__
from ..errors import CotensorError, InvalidError, NoDaemonError, OverBudgetError, UnsupportedError
from .handle import Form, Handle, Spec, spec_of
from .imports import when_imported
from .process import Process, node_id
from .values import INLINE_BYTES_MAX, small

#: The name of :mod:`cotensor.ray.transport`.
TRANSPORT = "COTENSOR"
#: The time from an error to a collection of cycles, in seconds, and a lock that is held until then.
_COLLECT_SECONDS = 1.0
_collecting = threading.Lock()

#: A function and its arguments that make a value, and more, as ``__reduce_ex__`` returns it.
_Reduced = Tuple[Any, ...]


def register() -> None:
    """Registers the reducers in this process. Those of numpy and torch are registered when these are imported."""
    # `register_serializer` would wrap small values, too, whose pickles could then only be read with Cotensor.
    reduce = ray._private.worker.global_worker.get_serialization_context()._register_cloudpickle_reducer
    reduce(Tensor, _tensor)
    when_imported("numpy", lambda numpy: reduce(numpy.ndarray, _array))
    when_imported("torch", lambda torch: reduce(torch.Tensor, _torch))


def _tensor(tensor: Tensor) -> _Reduced:
    if not _is_counted():
        return _inline(tensor)
    # A token takes longer than the copy.
    is_small = tensor.device == "cpu" and small(tensor) is not None
    handle = None if is_small else _handle(lambda process: process.handle_of(tensor), tensor.device == "cpu")
    return handle or (_by_value, (__version__, tuple(spec_of(tensor)), tensor.tobytes()))


def _array(array: Any) -> _Reduced:
    if array.nbytes <= INLINE_BYTES_MAX or array.dtype.hasobject or array.dtype.names is not None:
        return _inline(array)
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        # Tensors have C order.
        return sys.modules["numpy"].transpose, (array.T,)
    return (_is_counted() and _published(array, "numpy")) or _inline(array)


def _torch(tensor: Any) -> _Reduced:
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu" and _transport() == TRANSPORT:
        advice = "return tensor.cpu(), or use a transport of Ray for devices, such as NIXL"
        raise UnsupportedError(f"{TRANSPORT} moves tensors of CPUs, and this one is on {tensor.device}: {advice}", field="device")
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    is_plain = is_plain and not vars(tensor)
    if not is_plain or tensor.nbytes <= INLINE_BYTES_MAX or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        return _inline(tensor)
    return (_is_counted() and _published(tensor, "torch")) or _inline(tensor)


def _published(value: Any, form: Form) -> Optional[_Reduced]:
    def make(process: Process) -> Optional[Handle]:
        try:
            tensor = process.put(value)
        except (UnsupportedError, InvalidError):
            # A dtype that is not shared, such as dates, or too many dimensions.
            return None
        with tensor:
            return process.handle_of(tensor, form)

    return _handle(make)


def _is_counted() -> bool:
    """Whether Ray counts the references in the object that is written. It does not in a pickled function."""
    return bool(ray._private.worker.global_worker.get_serialization_context().is_in_band_serialization())


def _handle(make: Callable[[Process], Optional[Handle]], has_values: bool = True) -> Optional[_Reduced]:
    """None for a value that travels inside of its object. Only one that ``has_values`` on the host can."""
    try:
        handle = make(Process.current())
    except (OverBudgetError, NoDaemonError) as error:
        if not has_values:
            raise
        warnings.warn(f"a tensor travels inside of its object: {error}", ResourceWarning, stacklevel=2)
        return None
    if handle is None:
        return None
    # Plain tuples: another version may have other classes.
    fields = {**handle._asdict(), "spec": tuple(handle.spec)}
    return _value, (__version__, tuple(fields.values()))


def _transport() -> Optional[str]:
    """The transport of Ray for which this thread writes an object."""
    noted = ray._private.worker.global_worker.get_serialization_context()._thread_local
    if not getattr(noted, "use_external_transport", False):
        return None
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "serialize_rdt_objects":
        frame = frame.f_back
    return frame and frame.f_locals["tensor_transport"]


def _inline(value: Any) -> _Reduced:
    return cast(_Reduced, value.__reduce_ex__(5))


def _value(version: str, fields: Tuple[Any, ...]) -> Any:
    """Opens a handle. Its fields are those of the Cotensor that made it."""
    try:
        return _opened(version, fields)
    except Exception:
        _collect_soon()
        raise


def _by_value(version: str, spec: Tuple[Any, ...], data: bytes) -> Tensor:
    """A tensor of the Cotensor that has written its values."""
    _check_version(version)
    return Process.current().put_values(Spec.of(spec), data)


def _check_version(version: str) -> None:
    if version != __version__:
        what = f"a tensor of Cotensor {version} cannot be opened by Cotensor {__version__} on node {node_id()}"
        raise UnsupportedError(f"{what}: install one version on all nodes")


def _opened(version: str, fields: Tuple[Any, ...]) -> Any:
    _check_version(version)
    handle = Handle(*fields)
    handle = handle._replace(spec=Spec.of(handle.spec))
    try:
        return Process.current().open(handle)
    except CotensorError as error:
        # Not before Python 3.11.
        if hasattr(error, "add_note"):
            error.add_note(f"opening {handle.name} of node {handle.node} on node {node_id()}")
        raise


def _collect_soon() -> None:
    """Collects cycles. Ray keeps the error in a function that reads objects, and the error keeps that function: the reference
    to the object would stay until a worker, which may have nothing to do, collects by itself.

    Not in a driver: Ray ends a process in which a thread drops a reference while ``ray.shutdown`` runs.
    """
    if ray._private.worker.global_worker.mode == ray.WORKER_MODE and _collecting.acquire(blocking=False):
        timer = threading.Timer(_COLLECT_SECONDS, _collect)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:
            # This process can have no more threads now. The next error tries again.
            _collecting.release()


def _collect() -> None:
    _collecting.release()
    gc.collect()
