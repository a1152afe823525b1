"""Tensors on the simulated accelerator."""

from __future__ import annotations

import copy as copy_of
import functools
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .memory import MEMORIES

aten = torch.ops.aten

#: Operations with tensors of both devices.
_COPIES = {aten.copy.default, aten.copy_.default, aten._to_copy.default, aten._copy_from.default}
#: As on GPUs, tensors of indices may be on the host.
_INDEXING = {
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}
#: PyTorch resolves views with these bits before kernels that do not know them, but not inside of ``__torch_dispatch__``.
_BITS = torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate) | torch._C.DispatchKeySet(torch._C.DispatchKey.Negative)


class SimulatedTensor(torch.Tensor):
    """A tensor on the simulated accelerator. ``raw`` is the host tensor that holds its elements."""

    raw: torch.Tensor
    buffers: Any

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: torch.Tensor, index: Optional[int] = None, requires_grad: bool = True) -> "SimulatedTensor":
        if index is None:
            # ``type(parameter)(data)``: the type of a parameter on this device is this one, and ``Parameter`` on others.
            return torch.nn.Parameter(raw, requires_grad)  # type: ignore[return-value]
        if index >= len(MEMORIES):
            raise RuntimeError(f"invalid device ordinal: simulated:{index}, of {len(MEMORIES)} simulated devices")
        if raw.layout not in (torch.strided, torch.sparse_coo):
            raise NotImplementedError(f"tensors on {torch.device('simulated', index)} have no layout {raw.layout}")
        strided = raw.layout == torch.strided
        buffers = [MEMORIES[index].buffer_of(part) for part in parts(raw)] if has_memory(raw) else None
        # In inference mode, views of other tensors are not inference tensors.
        with torch.inference_mode(raw.is_inference()):
            tensor = torch.Tensor._make_wrapper_subclass(
                cls,
                raw.size(),
                strides=raw.stride() if strided else None,
                storage_offset=raw.storage_offset() if strided else None,
                dtype=raw.dtype,
                layout=raw.layout,
                device=torch.device("simulated", index),
            )
        tensor.raw, tensor.buffers = raw, buffers
        # Views that PyTorch resolves in operations that do not know them, before they are run on the elements.
        if raw.is_conj():
            torch._C._set_conj(tensor, True)
        if raw.is_neg():
            torch._C._set_neg(tensor, True)
        return tensor

    @property
    def data(self) -> torch.Tensor:
        """The tensor without its gradient; setting it replaces the elements."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined,no-any-return]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        if isinstance(value, SimulatedTensor):
            self.raw, self.buffers = value.raw, value.buffers

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        if _is_composite(func) and any([isinstance(one, torch.Tensor) and one.is_inference() for one in args]):
            # PyTorch does not take it apart for tensors of inference mode.
            with torch._C.DisableTorchFunction():
                return func.decompose(*args, **(kwargs or {}))
        return dispatch(func, args, dict(kwargs or {}))

    def __tensor_flatten__(self) -> Tuple[List[str], int]:
        return ["raw"], self.device.index

    @staticmethod
    def __tensor_unflatten__(inner: Mapping[str, torch.Tensor], index: int, size: Any, stride: Any) -> "SimulatedTensor":
        return SimulatedTensor(inner["raw"], index)

    def numpy(self, *, force: bool = False) -> Any:
        """An error, as on other accelerators, unless ``force``."""
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        return self.numpy()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory that holds the elements."""
        return storage_of(self)

    def data_ptr(self) -> int:
        """The address of the elements."""
        return self.raw.data_ptr()

    def tolist(self) -> Any:
        """The elements, copied to the host."""
        return self.detach().cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        gradient = ", requires_grad=True" if self.requires_grad else ""
        return f"{repr(self.detach().cpu())[:-1]}, device='{self.device}'{gradient})"

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def __copy__(self) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            # Another tensor of the same memory, whose users count.
            raw = self.raw.detach()
        return self._kind(SimulatedTensor(raw, self.device.index).requires_grad_(self.requires_grad))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """With the elements on the host, as PyTorch saves tensors of devices whose memory it does not read."""
        if getattr(self, "_is_param", False):
            return torch._utils._rebuild_parameter, (self.detach(), self.requires_grad, OrderedDict())
        parts = (self.detach().cpu(), self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, parts

    def __deepcopy__(self, memo: Any) -> Any:
        if id(self) not in memo:
            if not self.is_leaf:
                raise RuntimeError(
                    "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.  "
                )
            memo[id(self)] = copied = self._kind(self.detach().clone().requires_grad_(self.requires_grad))
            if self.grad is not None and not getattr(self, "_is_param", False):
                copied.grad = copy_of.deepcopy(self.grad, memo)
        return memo[id(self)]

    def _kind(self, other: torch.Tensor) -> torch.Tensor:
        """A parameter, if this is one."""
        return torch.nn.Parameter(other, other.requires_grad) if getattr(self, "_is_param", False) else other


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether an operation consists of others, such as ``to`` and ``expand_as``."""
    return bool(func._can_decompose())


def dispatch(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Runs an operation on the elements, which are on the host and which no mode sees."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C.DisableTorchFunction(), torch._C._ForceDispatchKeyGuard(included, excluded - _BITS):
        return _dispatch(func, args, kwargs)


def _dispatch(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    wrapped: Dict[int, torch.Tensor] = {}
    on_host: List[torch.Tensor] = []
    # Made by compiled code, which torch.compile traces without this class: they are copied.
    traced: List[Tuple[torch.Tensor, torch.Tensor]] = []

    def raw_of(value: Any) -> Any:
        if isinstance(value, SimulatedTensor):
            wrapped[id(value.raw)] = value
            return value.raw
        if isinstance(value, torch.Tensor) and value.device.type == "simulated":
            raw = value.to("cpu")
            wrapped[id(raw)] = value
            traced.append((value, raw))
            return raw
        if isinstance(value, torch.Tensor):
            on_host.append(value)
        return value

    raw_args = [_each(raw_of, value) for value in args]
    raw_kwargs = {name: _each(raw_of, value) for name, value in kwargs.items()}
    if func in _COPIES:
        return copy(func, args, raw_args, raw_kwargs)
    if func in _INDEXING or func is aten._pack_padded_sequence.default:
        on_host.clear()
    devices = {tensor.device: None for tensor in [*wrapped.values(), *on_host] if tensor.dim() > 0}
    if len(devices) > 1:
        one, other = list(devices)[:2]
        text = f"Expected all tensors to be on the same device, but found at least two devices, {one} and {other}! ({func})"
        raise RuntimeError(text)
    index = next(iter(wrapped.values())).device.index if wrapped else 0
    index = next((tensor.device.index for tensor in wrapped.values() if tensor.dim() > 0), index)
    named = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    to_host = named is not None and named.type != "simulated"
    if "device" in kwargs and not to_host:
        raw_kwargs["device"] = torch.device("cpu")
        if named is not None and named.index is not None:
            index = named.index
    if func is aten.histc.default and not raw_args[0].is_floating_point():
        # As on GPUs, also for integers.
        return SimulatedTensor(func(raw_args[0].double(), *raw_args[1:], **raw_kwargs).to(raw_args[0].dtype), index)
    results = func(*raw_args, **raw_kwargs)
    if func._schema.is_mutable:
        for tensor in wrapped.values():
            if isinstance(tensor, SimulatedTensor):
                follow(tensor)
        for tensor, raw in traced:
            tensor.copy_(raw)
        if func._schema.name.startswith("aten::_foreach_"):
            # PyTorch leaves it to the kernels of these.
            written = [one for one in args[0] if not one.is_inference()]
            torch.autograd.graph.increment_version(written)
    if to_host:
        return results
    if func is aten._pack_padded_sequence.default:
        # The lengths are on the host, as on GPUs.
        return SimulatedTensor(results[0], index), results[1]

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in wrapped:
            return wrapped[id(value)]
        return SimulatedTensor(value, index)

    return _each(wrap, results)


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """The function of a value, or of each one of a list or tuple: operations have no other containers."""
    if isinstance(value, (list, tuple)):
        return type(value)([_each(function, one) for one in value])
    return function(value)


def copy(func: Any, args: Sequence[Any], raw_args: Any, raw_kwargs: Any) -> Any:
    """A copy within the device, or between host and device."""
    if func is aten._to_copy.default:
        named = args[0].device if raw_kwargs.get("device") is None else torch.device(raw_kwargs["device"])
        raw_kwargs["device"] = torch.device("cpu") if named.type == "simulated" else named
        raw_kwargs.pop("pin_memory", None)
        result = func(*raw_args, **raw_kwargs)
        count_copy(args[0].device, named, result)
        return SimulatedTensor(result, named.index or 0) if named.type == "simulated" else result
    if func is aten.copy.default:
        # Compiled code has it for ``copy_``.
        result = func(*raw_args, **raw_kwargs)
        count_copy(args[1].device, args[0].device, result)
        return result if args[0].is_cpu else SimulatedTensor(result, args[0].device.index or 0)
    target, source = args[:2] if func is aten.copy_.default else (args[1], args[0])
    if not is_same(*raw_args[:2]):
        func(*raw_args, **raw_kwargs)
    count_copy(source.device, target.device, raw_args[0])
    return target


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of the host have the same elements in the same memory, perhaps in other shapes.

    Of tensors on the device, PyTorch does not see it: ``matmul`` copies a view of ``out`` to ``out``."""
    if not (has_memory(one) and has_memory(other) and one.layout is other.layout is torch.strided and one.numel() > 0):
        return False
    if one.data_ptr() != other.data_ptr() or one.numel() != other.numel() or one.dtype != other.dtype:
        return False
    same = one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()
    return same and one.is_contiguous() and other.is_contiguous()


def count_copy(source: torch.device, target: torch.device, raw: torch.Tensor) -> None:
    """Counts a copy of the size of ``raw`` where it leaves a simulated device and where it arrives."""
    if source != target and has_memory(raw):
        for device, to_device in ((source, False), (target, True)):
            if device.type == "simulated":
                MEMORIES[device.index or 0].copied(sum([part.nbytes for part in parts(raw)]), to_device)


def has_memory(raw: torch.Tensor) -> bool:
    """Whether a tensor of the host has elements; those that torch.compile traces have none."""
    return type(raw) in (torch.Tensor, torch.nn.Parameter)


def follow(tensor: SimulatedTensor) -> None:
    """Gives a tensor the shape that an operation in place gave its elements."""
    raw = tensor.raw
    if raw.layout != torch.strided:
        return
    same = tensor.size() == raw.size() and tensor.stride() == raw.stride()
    if not same or tensor.storage_offset() != raw.storage_offset():
        shaped = SimulatedTensor(raw, tensor.device.index)
        with torch.no_grad():
            tensor.data = shaped
        tensor.buffers = shaped.buffers


def parts(raw: torch.Tensor) -> List[torch.Tensor]:
    """The tensors with memory that a tensor of the host consists of."""
    if raw.layout == torch.sparse_coo:
        return [raw._values(), raw._indices()]
    if raw.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [raw.values(), raw.crow_indices(), raw.col_indices()]
    if raw.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [raw.values(), raw.ccol_indices(), raw.row_indices()]
    return [raw]


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The memory of a tensor; of a sparse one, that of its values."""
    return parts(tensor.raw if isinstance(tensor, SimulatedTensor) else tensor)[0].untyped_storage()


def raw_storage(tensor: torch.Tensor) -> int:
    """A number of the memory of a tensor, equal for all tensors in it."""
    return int(storage_of(tensor)._cdata)


def weakly(tensor: torch.Tensor) -> Callable[[], Optional[torch.Tensor]]:
    """Gives a tensor of the same memory without a gradient, as long as something else keeps the memory."""
    raw, index = (tensor.raw, tensor.device.index) if isinstance(tensor, SimulatedTensor) else (tensor, None)
    memory = StorageWeakRef(raw.untyped_storage())  # type: ignore[no-untyped-call]
    dtype, device, view = raw.dtype, raw.device, (raw.storage_offset(), raw.size(), raw.stride())

    def alive() -> Optional[torch.Tensor]:
        storage = torch.UntypedStorage._new_with_weak_ptr(memory.cdata)
        if storage is None:
            return None
        with torch.no_grad():
            found = torch.empty(0, dtype=dtype, device=device).set_(storage, *view)
        return found if index is None else SimulatedTensor(found, index)

    return alive
