"""A machine with GPUs that do not exist, its driver by ctypes, and a consumer and a producer of DLPack."""

from __future__ import annotations

import ctypes as c
import fcntl
import math
import os
import shutil
import struct
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

REPOSITORY = Path(__file__).resolve().parents[2]
#: The unit in which the driver allocates.
UNIT = 2 << 20
#: `F_OFD_GETLK` and `F_WRLCK` of Linux.
GET_LOCK, WRITE_LOCK = 36, 1
INVALID_VALUE = 1


def built_driver() -> Path:
    """The fake driver of tools/fake-cuda."""
    named = os.environ.get("COTENSOR_FAKE_CUDA")
    path = Path(named) if named else REPOSITORY / "target" / "debug" / "libcotensor_fake_cuda.so"
    assert path.is_file(), f"{path} is missing: cargo build -p cotensor-fake-cuda"
    return path


class Machine:
    """A folder that is a machine with devices of 1 GiB: all processes that load the driver from there share them."""

    def __init__(self, folder: Path, devices: int = 1) -> None:
        self.folder = folder
        self.driver = folder / "libcuda.so.1"
        shutil.copyfile(built_driver(), self.driver)
        self.devices = devices
        self.set()

    def set(self, *lines: str) -> None:
        """Replaces the settings, such as `fail cuMemMap 2`."""
        new = self.folder / "settings.new"
        new.write_text("\n".join([f"devices {self.devices}", *lines, ""]))
        new.replace(self.folder / "settings")

    def environment(self, **more: str) -> Dict[str, str]:
        return {**os.environ, "COTENSOR_CUDA_DRIVER": str(self.driver), **more}

    def used(self, device: int = 0) -> int:
        """Bytes of a device that processes have."""
        bytes_used = 0
        for file in self.folder.glob(f"memory-{device}-*"):
            with open("/dev/zero") as other:
                lock = struct.pack("hhqqi4x", WRITE_LOCK, os.SEEK_SET, int(file.name.split("-")[2]), 1, 0)
                kind = struct.unpack("hhqqi4x", fcntl.fcntl(other, GET_LOCK, lock))[0]
            if kind != fcntl.F_UNLCK:
                bytes_used += file.stat().st_size
        return bytes_used

    def has_used(self, nbytes: int) -> bool:
        """Whether processes have so many bytes of the first device."""
        return self.used() == nbytes


class InstalledMachine(Machine):
    """The machine itself, with its GPUs and their driver."""

    def __init__(self) -> None:
        pass

    def environment(self, **more: str) -> Dict[str, str]:
        return {**os.environ, "COTENSOR_CUDA_DRIVER": "libcuda.so.1", **more}

    def has_used(self, nbytes: int) -> bool:
        """The contexts of programs take memory, too, so nothing is checked."""
        return True


class _Properties(c.Structure):
    _fields_ = [
        ("kind", c.c_int),
        ("handles", c.c_int),
        ("place", c.c_int),
        ("device", c.c_int),
        ("attributes", c.c_void_p),
        ("flags", c.c_uint8 * 8),
    ]


class _Access(c.Structure):
    _fields_ = [("place", c.c_int), ("device", c.c_int), ("flags", c.c_int)]


class Driver:
    """The driver as another library of this process uses it: a stream of its own, and memory."""

    def __init__(self, device: int = 0) -> None:
        self.library = c.CDLL(os.environ["COTENSOR_CUDA_DRIVER"])
        self.device = device
        context, stream = c.c_uint64(), c.c_uint64()
        self.call("cuInit", c.c_uint(0))
        self.call("cuDevicePrimaryCtxRetain", c.byref(context), c.c_int(device))
        self.call("cuCtxPushCurrent_v2", context)
        self.call("cuStreamCreate", c.byref(stream), c.c_uint(1))
        self.stream = stream.value

    def result(self, function: str, *arguments: Any) -> int:
        return int(getattr(self.library, function)(*arguments))

    def call(self, function: str, *arguments: Any) -> None:
        code = self.result(function, *arguments)
        assert code == 0, f"{function}: {code}"

    def allocate(self, nbytes: int = UNIT) -> int:
        """Writable memory of the device. Returns its address."""
        handle, address = c.c_uint64(), c.c_uint64()
        properties, access = _Properties(1, 1, 1, self.device), _Access(1, self.device, 3)
        self.call("cuMemCreate", c.byref(handle), c.c_size_t(nbytes), c.byref(properties), c.c_uint64(0))
        zeros = (c.c_size_t(0), c.c_uint64(0), c.c_uint64(0))
        self.call("cuMemAddressReserve", c.byref(address), c.c_size_t(nbytes), *zeros)
        self.call("cuMemMap", address, c.c_size_t(nbytes), c.c_size_t(0), handle, c.c_uint64(0))
        self.call("cuMemSetAccess", address, c.c_size_t(nbytes), c.byref(access), c.c_size_t(1))
        return address.value

    def fill(self, address: int, value: int, nbytes: int, stream: Optional[int] = None) -> int:
        """Gives a stream, by default the own one, work, which runs late. Returns the driver's result."""
        to = c.c_uint64(self.stream if stream is None else stream)
        arguments = (c.c_uint64(address), c.c_uint8(value), c.c_size_t(nbytes), to)
        return self.result("cuMemsetD8Async", *arguments)

    def write(self, address: int, content: bytes) -> None:
        self.call("cuMemcpyHtoDAsync_v2", c.c_uint64(address), content, c.c_size_t(len(content)), c.c_uint64(self.stream))
        self.wait()

    def read(self, address: int, nbytes: int) -> bytes:
        """Waits only for the own stream."""
        content = c.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoHAsync_v2", content, c.c_uint64(address), c.c_size_t(nbytes), c.c_uint64(self.stream))
        self.wait()
        return content.raw

    def wait(self) -> None:
        self.call("cuStreamSynchronize", c.c_uint64(self.stream))


class _DLTensor(c.Structure):
    _fields_ = [
        ("data", c.c_uint64),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


class _Managed(c.Structure):
    """`DLManagedTensor`."""


_Deleter = c.CFUNCTYPE(None, c.c_void_p)
_Managed._fields_ = [("tensor", _DLTensor), ("context", c.c_void_p), ("deleter", _Deleter)]


class _Versioned(c.Structure):
    """`DLManagedTensorVersioned`."""

    _fields_ = [
        ("major", c.c_uint32),
        ("minor", c.c_uint32),
        ("context", c.c_void_p),
        ("deleter", _Deleter),
        ("flags", c.c_uint64),
        ("tensor", _DLTensor),
    ]


_python = c.pythonapi
_python.PyCapsule_GetName.restype = c.c_char_p
_python.PyCapsule_GetName.argtypes = [c.py_object]
_python.PyCapsule_GetPointer.restype = c.c_void_p
_python.PyCapsule_GetPointer.argtypes = [c.py_object, c.c_char_p]
_python.PyCapsule_SetName.argtypes = [c.py_object, c.c_char_p]
_python.PyCapsule_New.restype = c.py_object
_python.PyCapsule_New.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p]
#: Capsules have pointers to names.
_USED = c.create_string_buffer(b"used_dltensor")
_NAME = c.create_string_buffer(b"dltensor")


class Consumer:
    """What a library reads of a capsule. `delete()` frees it."""

    def __init__(self, capsule: Any) -> None:
        name = _python.PyCapsule_GetName(capsule)
        assert name in (b"dltensor", b"dltensor_versioned"), name
        kind = _Versioned if name == b"dltensor_versioned" else _Managed
        self.pointer = _python.PyCapsule_GetPointer(capsule, name)
        managed = kind.from_address(self.pointer)
        _python.PyCapsule_SetName(capsule, c.cast(_USED, c.c_char_p))
        self.version: Optional[Tuple[int, int]] = None
        self.flags: Optional[int] = None
        if kind is _Versioned:
            self.version, self.flags = (managed.major, managed.minor), managed.flags
        tensor = managed.tensor
        self.device = (tensor.device_type, tensor.device_id)
        self.address = tensor.data + tensor.byte_offset
        self.dtype = (tensor.code, tensor.bits, tensor.lanes)
        self.shape: List[int] = tensor.shape[: tensor.ndim]
        self.strides: List[int] = tensor.strides[: tensor.ndim]
        self._deleter = managed.deleter

    def delete(self) -> None:
        self._deleter(self.pointer)


#: Exported arrays, which exist until their consumers delete them; here until the process ends.
_exported: List[Any] = []


class Producer:
    """An array of bytes of another library, whose last write sets all of them to `value`."""

    def __init__(
        self,
        driver: Driver,
        address: int,
        shape: Sequence[int],
        value: Optional[int] = None,
        strides: Optional[List[int]] = None,
    ) -> None:
        self.driver, self.address, self.shape = driver, address, list(shape)
        self.value, self.strides = value, strides
        self.streams: List[Any] = []
        self.deleted = 0

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (2, self.driver.device)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        self.streams.append(stream)
        # The specification: the consumer's stream must not read before the write, which runs late and for which the host does
        # not wait; -1 asks for nothing.
        if self.value is not None and stream != -1:
            assert self.driver.fill(self.address, self.value, math.prod(self.shape), stream) == 0
        rank = len(self.shape)
        self._shape = (c.c_int64 * rank)(*self.shape)
        self._strides = (c.c_int64 * rank)(*self.strides) if self.strides else None
        self._deleter = _Deleter(self._delete)
        strides = c.cast(self._strides, c.POINTER(c.c_int64)) if self._strides else None
        shape = c.cast(self._shape, c.POINTER(c.c_int64))
        tensor = _DLTensor(self.address, 2, self.driver.device, rank, 1, 8, 1, shape, strides, 0)
        self._managed = _Managed(tensor, None, self._deleter)
        _exported.append(self)
        return _python.PyCapsule_New(c.addressof(self._managed), c.cast(_NAME, c.c_char_p), None)

    def _delete(self, _pointer: int) -> None:
        self.deleted += 1


class InterfaceArray:
    """The same by `__cuda_array_interface__`."""

    def __init__(self, interface: Dict[str, Any]) -> None:
        self.__cuda_array_interface__ = interface
