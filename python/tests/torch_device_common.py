"""Tensors of PyTorch on a GPU that does not exist: PyTorch without CUDA has their shapes, and the fake driver their elements."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Sequence

import torch
from device_common import UNIT, Consumer, Driver

import cotensor
from cotensor.torch.weights import place


class OnDevice(torch.Tensor):
    """What PyTorch says of a tensor on its device 0. No operation computes with it."""

    _is_plain_tensor = True
    address: int
    keep: Any

    @staticmethod
    def __new__(
        cls, address: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, keep: Any = None
    ) -> OnDevice:
        made: OnDevice = torch.Tensor._make_wrapper_subclass(cls, shape, strides=stride, dtype=dtype, device="cuda:0")
        made.address, made.keep = address, keep
        return made

    def __init__(self, *_description: Any) -> None:
        super().__init__()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shown: OnDevice = args[0]
        aten = torch.ops.aten
        if func is aten.detach.default:
            return shown.shown()
        if func is aten.clone.default:
            assert shown.is_contiguous()
            nbytes, driver = shown.numel() * shown.element_size(), Driver()
            address = driver.allocate(-(-nbytes // UNIT) * UNIT)
            driver.write(address, driver.read(shown.address, nbytes))
            return OnDevice(address, shown.shape, shown.stride(), shown.dtype)
        if func is aten.slice.Tensor:
            _, dimension, start, end = args
            assert (shown.dim(), dimension, start) == (1, 0, 0)
            return OnDevice(shown.address, (min(end, len(shown)),), (1,), shown.dtype, shown.keep)
        if func is aten.view.dtype:
            count = shown.numel() * shown.element_size() // args[1].itemsize
            return OnDevice(shown.address, (count,), (1,), args[1], shown.keep)
        if func is aten.as_strided.default:
            _, shape, stride, offset = args
            return OnDevice(shown.address + offset * shown.element_size(), shape, stride, shown.dtype, shown.keep)
        raise AssertionError(f"{func} on a device that does not exist")

    def shown(self) -> OnDevice:
        return OnDevice(self.address, self.shape, self.stride(), self.dtype, self.keep)

    def data_ptr(self) -> int:
        return self.address

    @property
    def data(self) -> OnDevice:
        return self.shown()

    @data.setter
    def data(self, other: OnDevice) -> None:
        assert (other.shape, other.stride(), other.dtype) == (self.shape, self.stride(), self.dtype)
        self.address, self.keep = other.address, other.keep


class Kept:
    """Frees a consumed capsule with the last tensor on it."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer

    def __del__(self) -> None:
        self.consumer.delete()


def as_torch(tensor: cotensor.Tensor) -> OnDevice:
    """As `torch.from_dlpack`."""
    consumer = Consumer(tensor.__dlpack__(max_version=(1, 0)))
    assert consumer.device == (2, 0)
    dtype = getattr(torch, str(tensor.dtype))
    return OnDevice(consumer.address, consumer.shape, consumer.strides, dtype, Kept(consumer))


place.as_torch = as_torch


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The memory of a tensor of the host from its first element to its last."""
    count = place.span(tensor.shape, tensor.stride()) * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), count) if count else b""


def elements(driver: Driver, tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor on the device, read by the driver."""
    assert isinstance(tensor, OnDevice)
    count = place.span(tensor.shape, tensor.stride())
    if not count:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    memory = torch.frombuffer(bytearray(driver.read(tensor.address, count * tensor.element_size())), dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride())


def to_device(driver: Driver, module: torch.nn.Module) -> Dict[str, torch.Tensor]:
    """Moves a module to the device, with the exact strides. Returns its tensors as they were on the host, by name.

    Tensors that share memory on the host do so on the device.
    """
    before: Dict[str, torch.Tensor] = {}
    tied: Dict[int, torch.nn.Parameter] = {}
    memory: Dict[int, int] = {}
    #: Their numbers and addresses are not used again meanwhile.
    originals: List[torch.Tensor] = []

    def move(tensor: torch.Tensor) -> OnDevice:
        originals.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in memory:
            size = max(storage.nbytes(), 1)
            memory[storage.data_ptr()] = driver.allocate(-(-size // UNIT) * UNIT)
            if storage.nbytes():
                content = ctypes.string_at(storage.data_ptr(), storage.nbytes())
                driver.write(memory[storage.data_ptr()], content)
        address = memory[storage.data_ptr()] + tensor.storage_offset() * tensor.element_size()
        return OnDevice(address, tensor.shape, tensor.stride(), tensor.dtype)

    for prefix, part in module.named_modules(remove_duplicate=False):
        for name, parameter in part._parameters.items():
            if parameter is not None and not isinstance(parameter, OnDevice):
                before[f"{prefix}.{name}".lstrip(".")] = parameter.detach().clone(memory_format=torch.preserve_format)
                if id(parameter) not in tied:
                    tied[id(parameter)] = torch.nn.Parameter(move(parameter), parameter.requires_grad)
                part._parameters[name] = tied[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None and not isinstance(buffer, OnDevice):
                before[f"{prefix}.{name}".lstrip(".")] = buffer.clone()
                part._buffers[name] = move(buffer)
    return before


def fill(driver: Driver, tensor: torch.Tensor, value: int, stream: Optional[int] = None) -> int:
    """Gives the device late work that writes all bytes of a tensor. Returns the driver's result."""
    assert isinstance(tensor, OnDevice)
    return driver.fill(tensor.address, value, tensor.numel() * tensor.element_size(), stream)
