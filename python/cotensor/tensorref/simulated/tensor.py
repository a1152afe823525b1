"""Tensors on the simulated accelerator."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch
from torch.utils._pytree import tree_map

from .memory import MEMORY

aten = torch.ops.aten

#: Operations with tensors of both devices.
_COPIES = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default}
#: As on GPUs, tensors of indices may be on the host.
_INDEXING = {
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}


class SimulatedTensor(torch.Tensor):
    """A tensor on the simulated accelerator. ``raw`` is the host tensor that holds its elements."""

    raw: torch.Tensor
    buffer: Any

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> "SimulatedTensor":
        buffer = MEMORY.buffer_of(raw)
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device("simulated", 0),
        )
        tensor.raw, tensor.buffer = raw, buffer
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        return dispatch(func, args, dict(kwargs or {}))

    def numpy(self, *, force: bool = False) -> Any:
        """An error, as on other accelerators, unless ``force``."""
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            "can't convert simulated:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        """The elements, copied to the host."""
        return self.detach().cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        gradient = ", requires_grad=True" if self.requires_grad else ""
        return f"{repr(self.detach().cpu())[:-1]}, device='simulated:0'{gradient})"

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def __deepcopy__(self, memo: Any) -> Any:
        if id(self) not in memo:
            copied = self.detach().clone().requires_grad_(self.requires_grad)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if getattr(self, "_is_param", False) else copied
        return memo[id(self)]


def dispatch(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Runs an operation on the elements, which are on the host."""
    wrapped = {}
    on_host = []

    def raw_of(value: Any) -> Any:
        if isinstance(value, SimulatedTensor):
            wrapped[id(value.raw)] = value
            return value.raw
        if isinstance(value, torch.Tensor):
            on_host.append(value)
        return value

    raw_args, raw_kwargs = tree_map(raw_of, (list(args), kwargs))
    if func in _COPIES:
        return copy(func, args, raw_args, raw_kwargs)
    if func not in _INDEXING and any(tensor.dim() > 0 for tensor in on_host):
        host = next(tensor for tensor in on_host if tensor.dim() > 0)
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, simulated:0 and "
            f"{host.device}! ({func})"
        )
    to_host = "device" in kwargs and kwargs["device"] is not None and torch.device(kwargs["device"]).type != "simulated"
    if "device" in kwargs and not to_host:
        raw_kwargs["device"] = torch.device("cpu")
    if func is aten.histc.default and not raw_args[0].is_floating_point():
        # As on GPUs, also for integers.
        return SimulatedTensor(func(raw_args[0].double(), *raw_args[1:], **raw_kwargs).to(raw_args[0].dtype))
    results = func(*raw_args, **raw_kwargs)
    if func._schema.is_mutable:
        for tensor in wrapped.values():
            follow(tensor)
    if to_host:
        return results

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return wrapped[id(value)] if id(value) in wrapped else SimulatedTensor(value)

    return tree_map(wrap, results)


def copy(func: Any, args: Sequence[Any], raw_args: Any, raw_kwargs: Any) -> Any:
    """A copy within the device, or between host and device."""
    if func is aten._to_copy.default:
        target = raw_kwargs.get("device")
        to_device = target is None or torch.device(target).type == "simulated"
        raw_kwargs["device"] = torch.device("cpu") if to_device else target
        raw_kwargs.pop("pin_memory", None)
        result = func(*raw_args, **raw_kwargs)
        if to_device:
            return SimulatedTensor(result)
        MEMORY.copied(result.nbytes, to_device=False)
        return result
    func(*raw_args, **raw_kwargs)
    target, source = args[:2] if func is aten.copy_.default else (args[1], args[0])
    to_device, from_device = (isinstance(tensor, SimulatedTensor) for tensor in (target, source))
    if to_device != from_device:
        MEMORY.copied(target.nbytes, to_device)
    return target


def follow(tensor: SimulatedTensor) -> None:
    """Gives a tensor the shape that an operation in place gave its elements."""
    raw = tensor.raw
    same = tensor.size() == raw.size() and tensor.stride() == raw.stride()
    if not same or tensor.storage_offset() != raw.storage_offset():
        shaped = SimulatedTensor(raw)
        with torch.no_grad():
            tensor.data = shaped
        tensor.buffer = shaped.buffer


def raw_storage(tensor: torch.Tensor) -> int:
    """A number of the memory of a tensor, equal for all tensors in it."""
    raw = tensor.raw if isinstance(tensor, SimulatedTensor) else tensor
    return int(raw.untyped_storage()._cdata)
