"""DLPack as in the array API standard: capsules of both versions, exchanged with numpy."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import pytest

np = pytest.importorskip("numpy")

import cotensor  # noqa: E402

READ_ONLY, COPIED = 1, 2
DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def name_of(capsule: Any) -> bytes:
    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return bytes(get(capsule))


def flags_of(capsule: Any) -> int:
    """The flags of a versioned capsule, which follow version, context and deleter."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get(capsule, b"dltensor_versioned")
    assert ctypes.c_uint32.from_address(address).value == 1, "the major version"
    return int(ctypes.c_uint64.from_address(address + 24).value)


class CapsuleSource:
    """An array of another library, which exports a given capsule."""

    def __init__(self, capsule: Any, versioned: bool = True) -> None:
        self.capsule, self.versioned = capsule, versioned

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError("max_version is unknown here")
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def leases(store: cotensor.Store, name: str) -> int:
    gc.collect()
    return sum(sum(one["holders"].values()) for one in store.get_diagnostics()["tensors"] if one["name"] == name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_imports_and_exports_every_dtype(store: cotensor.Store, dtype: str) -> None:
    array = (np.arange(24).reshape(2, 3, 4) % 2).astype(dtype)
    tensor = store.put("d", CapsuleSource(array.__dlpack__()))
    assert tensor.dtype == dtype and tensor.numpy().tobytes() == array.tobytes()
    shown = np.from_dlpack(tensor)
    assert shown.dtype == dtype and shown.shape == (2, 3, 4) and shown.tobytes() == array.tobytes()
    window = np.from_dlpack(tensor[:, 1, ::2])
    assert window.tobytes() == array[:, 1, ::2].tobytes() and window.base is not None


def test_capsule_has_the_requested_version(store: cotensor.Store) -> None:
    tensor = store.put("v", np.arange(4))
    for max_version, name in ((None, b"dltensor"), ((0, 8), b"dltensor"), ((1, 0), b"dltensor_versioned")):
        assert name_of(tensor.__dlpack__(max_version=max_version)) == name
    assert name_of(tensor.__dlpack__(max_version=(2, 5))) == b"dltensor_versioned"
    assert flags_of(tensor.__dlpack__(max_version=(1, 0))) == READ_ONLY
    assert flags_of(tensor.__dlpack__(max_version=(1, 0), copy=False)) == READ_ONLY
    assert flags_of(tensor.__dlpack__(max_version=(1, 0), copy=True)) == COPIED
    assert flags_of(store.empty("w", 3).__dlpack__(max_version=(1, 0))) == 0, "the memory of a builder is writable"
    assert tensor.__dlpack_device__() == (1, 0)


def test_devices_and_streams_follow_the_standard(store: cotensor.Store) -> None:
    tensor, builder = store.put("s", np.arange(4)), store.empty("t", 4)
    for array in (tensor, builder):
        for stream in (None, -1):
            array.__dlpack__(stream=stream, dl_device=(1, 0))
        for wrong in ({"stream": 1}, {"stream": 0}, {"dl_device": (2, 0)}, {"dl_device": (13, 0)}):
            with pytest.raises(BufferError):
                array.__dlpack__(**wrong)
    with pytest.raises(BufferError):
        builder.__dlpack__(copy=True)
    with pytest.raises(TypeError):
        tensor.__dlpack__(None)  # type: ignore[misc]


def test_requested_copy_is_private_and_counted(store: cotensor.Store) -> None:
    tensor = store.put("c", np.arange(6.0).reshape(2, 3))
    copy = np.from_dlpack(CapsuleSource(tensor[:, 1].__dlpack__(max_version=(1, 0), copy=True)))
    assert copy.tolist() == [1.0, 4.0] and copy.ctypes.data != tensor[:, 1].data_ptr
    last = store.get_diagnostics()["recent_copies"][-1]
    assert last["tensor"] == "c" and last["bytes"] == 16 or store.socket is not None


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_capsule_keeps_the_tensor_until_its_deleter_runs(store: cotensor.Store, max_version: Any) -> None:
    tensor = store.put("k", np.arange(100_000), keep=False)
    capsule = tensor.__dlpack__(max_version=max_version)
    tensor.release()
    del tensor
    assert leases(store, "k") == 1, "an unconsumed capsule keeps the tensor"
    array = np.from_dlpack(CapsuleSource(capsule))
    assert array[99_999] == 99_999
    with pytest.raises((BufferError, ValueError)):
        np.from_dlpack(CapsuleSource(capsule))
    del capsule
    assert leases(store, "k") == 1 and array[5] == 5
    del array
    assert leases(store, "k") == 0
    dropped = store.put("k", np.arange(10), keep=False).__dlpack__(max_version=max_version)
    assert leases(store, "k") == 1
    del dropped
    assert leases(store, "k") == 0, "dropping an unconsumed capsule releases the lease"


@pytest.mark.parametrize("versioned", [True, False])
def test_foreign_capsule_is_consumed_once(store: cotensor.Store, versioned: bool) -> None:
    array = np.arange(10, dtype="int32")[::-2]
    if versioned:
        capsule = array.__dlpack__(max_version=(1, 0)) if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else None
        if capsule is None:
            pytest.skip("this numpy knows no versions")
    else:
        capsule = array.__dlpack__()
    assert store.put("o", CapsuleSource(capsule, versioned)).numpy().tolist() == array.tolist()
    for wrong in (capsule, object(), None, 5):
        with pytest.raises(cotensor.UnsupportedError) as raised:
            store.put("o", CapsuleSource(wrong, versioned))
        assert isinstance(raised.value.__cause__, BufferError)


class DeviceSource(CapsuleSource):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 1)


class FailingSource(CapsuleSource):
    def __dlpack__(self, **options: Any) -> Any:
        raise RuntimeError("sparse")


def test_refused_arrays_give_the_reason(store: cotensor.Store) -> None:
    with pytest.raises(cotensor.UnsupportedError) as raised:
        store.put("e", DeviceSource(None))
    assert "from_device=True" in str(raised.value)
    with pytest.raises(cotensor.UnsupportedError) as raised:
        store.put("e", FailingSource(None))
    assert "sparse" in str(raised.value)
    assert "e" not in store


def test_empty_and_zero_dimensional_arrays(store: cotensor.Store) -> None:
    for shape in ((), (0,), (3, 0, 2), (1, 1)):
        array = np.ones(shape, "float32")
        tensor = store.put("z", CapsuleSource(array.__dlpack__()))
        for shown in (np.from_dlpack(tensor), tensor.numpy()):
            assert shown.shape == shape and shown.tobytes() == array.tobytes()


def test_builder_is_written_through_dlpack(store: cotensor.Store) -> None:
    builder = store.empty("p", (2, 2), "int64")
    view = np.from_dlpack(builder)
    if not view.flags.writeable:
        pytest.skip("this numpy takes read-only arrays only")
    assert view.ctypes.data == builder.data_ptr
    view[:] = 5
    assert builder.publish().numpy().tolist() == [[5, 5], [5, 5]]
