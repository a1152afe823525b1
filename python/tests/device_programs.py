"""What processes with a GPU do in the tests of tensors on devices: `python device_programs.py NAME SOCKET ARGUMENTS`.

Each runs in a process of its own, because a process keeps the driver that it has loaded.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import pickle
import sys
from typing import Any, Callable

import device_common as devices
import numpy as np
import pytest
from device_common import Consumer, Driver, InterfaceArray, Producer
from device_programs_common import machine, main, step
from functions_common import until

import cotensor

ELEMENTS = np.arange(24, dtype="float32").reshape(4, 6)
#: Flags of DLPack.
READ_ONLY, COPIED = 1, 2


def capsule_describes_the_published_memory(store: cotensor.Store) -> None:
    tensor = store.put("w", ELEMENTS, device="cuda:0")
    assert (tensor.device, tensor.memory, tensor.__dlpack_device__()) == ("cuda:0", "slab", (2, 0))
    driver = Driver()
    for shown in (tensor, tensor[1:, ::2], tensor[2]):
        expected = ELEMENTS[1:, ::2] if shown.ndim == 2 and shown is not tensor else ELEMENTS[2]
        expected = ELEMENTS if shown is tensor else expected
        array = Consumer(shown.__dlpack__(max_version=(1, 0)))
        assert (array.version, array.flags, array.device) == ((1, 0), READ_ONLY, (2, 0))
        assert array.dtype == (2, 32, 1) and tuple(array.shape) == shown.shape
        assert [stride * 4 for stride in array.strides] == list(expected.strides)
        assert array.address == shown.data_ptr
        offset = array.address - tensor.data_ptr
        assert driver.read(array.address, 4) == ELEMENTS.tobytes()[offset : offset + 4] == expected.tobytes()[:4]
        array.delete()
    old = Consumer(tensor.__dlpack__())
    assert (old.version, old.flags, old.device) == (None, None, (2, 0))
    assert driver.read(old.address, ELEMENTS.nbytes) == ELEMENTS.tobytes()
    # The mapping is read-only: the copy engine refuses it at once.
    assert driver.fill(old.address, 1, 4) == devices.INVALID_VALUE
    old.delete()
    assert not hasattr(store.put("host", ELEMENTS), "__cuda_array_interface__")


def streams_and_devices_of_requests(store: cotensor.Store) -> None:
    tensor = store.put("w", ELEMENTS, device="cuda:0")
    for stream in (None, -1, 1, 2, Driver().stream):
        Consumer(tensor.__dlpack__(stream=stream, dl_device=(2, 0), copy=False)).delete()
    for stream in (0, -2, "1", 1.5):
        with pytest.raises(BufferError, match="stream"):
            tensor.__dlpack__(stream=stream)
    for device in ((2, 1), (3, 0), (10, 0)):
        with pytest.raises(BufferError, match="dl_device"):
            tensor.__dlpack__(dl_device=device)
    with pytest.raises(BufferError, match="copy=False"):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)
    host = Consumer(tensor[:, 1].__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert (host.device, host.flags, host.strides) == ((1, 0), COPIED, [1])
    assert ctypes.string_at(host.address, 16) == ELEMENTS[:, 1].tobytes()
    host.delete()


def requested_copies_are_writable_and_own(store: cotensor.Store) -> None:
    tensor, driver = store.put("w", ELEMENTS, device="cuda:0"), Driver()
    used = machine().used()
    for shown, expected in ((tensor, ELEMENTS), (tensor[1:, ::2], ELEMENTS[1:, ::2])):
        array = Consumer(shown.__dlpack__(copy=True, max_version=(1, 0)))
        assert (array.flags, array.device, tuple(array.shape)) == (COPIED, (2, 0), expected.shape)
        assert array.address != shown.data_ptr and machine().used() == used + devices.UNIT
        last = array.address + sum((dim - 1) * stride * 4 for dim, stride in zip(array.shape, array.strides))
        assert driver.read(last, 4) == expected[-1:, -1:].tobytes()
        assert driver.fill(array.address, 9, 4) == 0
        driver.wait()
        array.delete()
        until(lambda: machine().used() == used)
    assert driver.read(tensor.data_ptr, ELEMENTS.nbytes) == ELEMENTS.tobytes()


def cuda_array_interface(store: cotensor.Store) -> None:
    tensor = store.put("w", ELEMENTS, device="cuda:0")
    shown = tensor[1:, ::2].__cuda_array_interface__
    assert shown == {
        "version": 3,
        "typestr": "<f4",
        "shape": (3, 3),
        "strides": (24, 8),
        "data": (tensor.data_ptr + 24, True),
        "stream": None,
    }
    assert store.put("e", ELEMENTS[:0], device="cuda:0").__cuda_array_interface__["data"] == (0, True)
    half = store.empty("b", 3, "bfloat16", device="cuda:0")
    with pytest.raises(AttributeError, match="DLPack"):
        getattr(half, "__cuda_array_interface__")  # noqa: B009
    assert not hasattr(half.publish(), "__cuda_array_interface__")
    # CuPy and Numba keep the object that has the interface, and nothing else.
    driver = Driver()
    shown = store.put("own", ELEMENTS, device="cuda:0", keep=False)
    address = shown.__cuda_array_interface__["data"][0]
    shown.release()
    assert shown.released and driver.read(address, ELEMENTS.nbytes) == ELEMENTS.tobytes()
    for released in (shown, store.put("host", ELEMENTS)):
        released.release()
        assert not hasattr(released, "__cuda_array_interface__")
    assert "own" in store
    del shown, released
    until(lambda: "own" not in store)


def host_methods_name_the_way_out(store: cotensor.Store) -> None:
    tensor = store.put("w", ELEMENTS, device="cuda:0")
    wrong: list[Callable[[], Any]] = [
        tensor.numpy,
        lambda: np.asarray(tensor),
        lambda: tensor + 1,
        lambda: memoryview(tensor),
    ]
    for call in wrong:
        with pytest.raises(cotensor.UnsupportedError) as raised:
            call()
        message = str(raised.value)
        assert "'w'" in message or '"w"' in message
        assert "cuda:0" in message and "copy_to" in message and "DLPack" in message
    target = np.zeros((4, 6), "float32")
    tensor.copy_to(target)
    part = np.zeros((3, 3), "float32")
    tensor[1:, ::2].copy_to(part)
    assert (target == ELEMENTS).all() and (part == ELEMENTS[1:, ::2]).all()
    assert tensor.tobytes() == bytes(tensor) == ELEMENTS.tobytes()
    assert tensor[1:, ::2].tobytes() == ELEMENTS[1:, ::2].tobytes()
    assert tensor[2, 3].item() == 15 and float(tensor[0, 1]) == 1
    own = tensor.detach()
    assert own.device == "cpu" and (own.numpy() == ELEMENTS).all()
    assert tensor.identity == store.put("h", ELEMENTS).identity
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        assert (np.from_dlpack(tensor, device="cpu") == ELEMENTS).all()
    assert (copy.copy(tensor).device, pickle.loads(pickle.dumps(tensor)).device) == ("cuda:0", "cuda:0")


def writes_in_place_are_errors(store: cotensor.Store) -> None:
    tensor = store.put("w", ELEMENTS, device="cuda:0")
    with pytest.raises(TypeError, match="read-only"):
        tensor[0, 0] = 1
    with pytest.raises(TypeError, match="read-only"):
        tensor += 1
    assert Consumer(tensor.__dlpack__(max_version=(1, 0))).flags == READ_ONLY
    assert tensor.__cuda_array_interface__["data"][1] is True


def lifetimes(store: cotensor.Store) -> None:
    own = machine()
    first = store.put("w", ELEMENTS, device="cuda:0", keep=False)
    capsule = first.__dlpack__(max_version=(1, 0))
    first.release()
    del first
    gc.collect()
    assert store._leases("w") and own.used() == devices.UNIT, "an unconsumed capsule keeps the tensor"
    array, driver = Consumer(capsule), Driver()
    del capsule
    assert driver.read(array.address, ELEMENTS.nbytes) == ELEMENTS.tobytes()
    array.delete()
    until(lambda: "w" not in store)
    # The slab of small tensors is given back when it is idle.
    until(lambda: own.used() == 0)
    dropped = store.put("w", ELEMENTS, device="cuda:0", keep=False).__dlpack__()
    assert own.used() == devices.UNIT and "w" in store
    del dropped
    until(lambda: "w" not in store)
    # Work that is left in a stream when the array is dropped finds its memory.
    array = Consumer(store.put("w", ELEMENTS, device="cuda:0", keep=False).__dlpack__())
    target = ctypes.create_string_buffer(ELEMENTS.nbytes)
    size = ctypes.c_size_t(ELEMENTS.nbytes)
    driver.call("cuMemcpyDtoHAsync_v2", target, ctypes.c_uint64(array.address), size, ctypes.c_uint64(driver.stream))
    array.delete()
    until(lambda: "w" not in store)
    assert target.raw == ELEMENTS.tobytes()
    # A closed store: the array keeps the connection.
    array = Consumer(store.put("w", ELEMENTS, device="cuda:0", keep=False).__dlpack__())
    store.close()
    gc.collect()
    assert driver.read(array.address, ELEMENTS.nbytes) == ELEMENTS.tobytes()
    array.delete()
    until(lambda: own.used() == 0)


def small_tensors_share_memory(store: cotensor.Store) -> None:
    own = machine()
    kept = [store.put(f"t{number}", np.full(10_000, number, "uint8"), device="cuda:0") for number in range(100)]
    assert own.used() == devices.UNIT
    assert all(tensor.data_ptr % 256 == 0 and tensor.memory == "slab" for tensor in kept)
    assert all(tensor.tobytes() == bytes([number]) * 10_000 for number, tensor in enumerate(kept))
    driver = Driver()
    copied = store.put("copy", kept[7])
    assert copied.memory == "slab" and copied.tobytes() == kept[7].tobytes()
    assert driver.fill(copied.data_ptr, 1, 4) == devices.INVALID_VALUE, "its array has a read-only address"
    # A builder has an address before its publication, so it has memory of its own.
    builder = store.empty("b", 24, "uint8", device="cuda:0")
    assert own.used() == 2 * devices.UNIT and builder.publish().memory == "device"


def range_is_used_again_after_the_work_that_reads_it(store: cotensor.Store) -> None:
    driver = Driver()
    with cotensor.connect(sys.argv[2]) as reader:
        for number in range(5):
            made = store.put("a", ELEMENTS + number, device="cuda:0", keep=False)
            found = reader["a"]
            array = Consumer(found.__dlpack__())
            made.release()
            found.release()
            # The work is left in a stream when the program drops the array.
            target = ctypes.create_string_buffer(ELEMENTS.nbytes)
            size, to = ctypes.c_size_t(ELEMENTS.nbytes), ctypes.c_uint64(driver.stream)
            driver.call("cuMemcpyDtoHAsync_v2", target, ctypes.c_uint64(array.address), size, to)
            array.delete()
            until(lambda: "a" not in store)
            for _ in range(20):
                store.put("b", -ELEMENTS, device="cuda:0", keep=False).release()
            assert target.raw == (ELEMENTS + number).tobytes()


def memory_of_dropped_arrays_is_free_for_the_next(store: cotensor.Store) -> None:
    driver, large = Driver(), np.ones(60 << 20, "uint8")
    for _ in range(4):
        store.put("w", large, device="cuda:0", keep=False).release()
    for _ in range(8):
        builder = store.empty("w", 60 << 20, "uint8", device="cuda:0", keep=False)
        array = Consumer(builder.__dlpack__())
        assert driver.fill(array.address, 1, 60 << 20) == 0
        del builder
        array.delete()


def work_that_does_not_end_is_no_endless_wait(store: cotensor.Store) -> None:
    own, large = machine(), 60 << 20
    # Room for one tensor.
    room = "memory 67108864"
    own.set(room)
    array = Consumer(store.empty("w", large, "uint8", device="cuda:0", keep=False).__dlpack__())
    # As a kernel that waits for another process.
    own.set(room, "block cuCtxSynchronize")
    array.delete()
    with pytest.raises(cotensor.OverBudgetError, match=r"dropped keep their memory until .* \(cuda:0\)"):
        store.empty("w", large, "uint8", device="cuda:0")
    own.set(room)
    until(lambda: own.used() == 0)
    store.empty("w", large, "uint8", device="cuda:0").discard()


def errors(store: cotensor.Store) -> None:
    with pytest.raises(cotensor.UnsupportedError, match="cuda:7"):
        store.empty("w", 3, device="cuda:7")
    for device, error in (("tpu", cotensor.InvalidError), (0, cotensor.InvalidError)):
        with pytest.raises(error) as raised:
            store.put("w", ELEMENTS, device=device)  # type: ignore[arg-type]
        assert raised.value.field == "device"
    with pytest.raises(cotensor.InvalidError, match="from_device"):
        store.put("w", ELEMENTS, from_device=True, device="cuda:0")
    with pytest.raises(cotensor.UnsupportedError):
        cotensor.Store().put("w", ELEMENTS, device="cuda:0")
    with pytest.raises(cotensor.OverBudgetError):
        store.empty("w", 1 << 30, "uint8", device="cuda:0")
    machine().set("fail cuMemCreate 2")
    with pytest.raises(cotensor.OverBudgetError, match="bytes left"):
        store.empty("w", 3, device="cuda:0")
    machine().set(f"lost {os.getpid()} 700")
    with pytest.raises(cotensor.IoError, match="started again"):
        store.empty("w", 3, device="cuda:0")
    machine().set()
    assert "w" not in store


def other_device_of_an_array(store: cotensor.Store) -> None:
    """A process with two devices."""
    driver = Driver(1)
    source = driver.allocate()
    assert store.put("same", Producer(driver, source, [100], 4)).__dlpack_device__() == (2, 1)
    moved = store.put("moved", Producer(driver, source, [100], 5), device="cuda:0")
    assert moved.__dlpack_device__() == (2, 0) and moved.tobytes() == b"\5" * 100
    found = store.put("interface", InterfaceArray({"typestr": "|u1", "shape": (100,), "data": (source, True)}))
    assert found.device == "cuda:1" and found.tobytes() == b"\5" * 100
    for address, device in ((source, "cuda:1"), (0, "cuda:0")):
        empty = {"typestr": "|u1", "shape": (0, 3), "data": (address, True)}
        assert store.put("empty", InterfaceArray(empty)).device == device


def renumbered_device(store: cotensor.Store) -> None:
    """A process that sees the machine's second device as its first."""
    tensor, driver = store["on 1"], Driver()
    assert (tensor.device, tensor.__dlpack_device__()) == ("cuda:1", (2, 0))
    assert driver.read(tensor.data_ptr, ELEMENTS.nbytes) == ELEMENTS.tobytes()
    assert store.put("here", Producer(driver, driver.allocate(), [8])).device == "cuda:1"
    with pytest.raises(cotensor.UnsupportedError, match="cuda:0"):
        store["on 0"]


def device_of_the_rank(store: cotensor.Store) -> None:
    """A process with `RANK` 3 of machines with two devices each."""
    assert store.put("w", ELEMENTS, device="cuda").device == "cuda:1"
    assert store.empty("b", 3, device="cuda").device == "cuda:1"
    os.environ["RANK"] = "4"
    assert store.put("w", ELEMENTS, device="cuda").device == "cuda:0"
    os.environ["RANK"] = "x"
    with pytest.raises(cotensor.InvalidError, match="RANK") as raised:
        store.put("w", ELEMENTS, device="cuda")
    assert raised.value.field == "RANK"


def publishes_on_each_device(store: cotensor.Store) -> None:
    for device in (0, 1):
        store.put(f"on {device}", ELEMENTS, device=f"cuda:{device}")


def shares(store: cotensor.Store) -> None:
    """Publishes, and stays."""
    with store.empty("w", (4, 6), device="cuda:0") as builder:
        builder.write(ELEMENTS)
    capsule = store["w"].__dlpack__()
    step("published")
    del capsule


def reads(store: cotensor.Store) -> None:
    """Uses the same memory, and stays."""
    tensor, driver = store["w"], Driver()
    array = Consumer(tensor.__dlpack__(max_version=(1, 0), stream=driver.stream))
    assert driver.read(array.address, ELEMENTS.nbytes) == ELEMENTS.tobytes()
    step("read")
    assert driver.read(array.address, ELEMENTS.nbytes) == ELEMENTS.tobytes()
    step("read again")


def without_a_driver(store: cotensor.Store) -> None:
    with pytest.raises(cotensor.UnsupportedError, match="COTENSOR_CUDA_DRIVER"):
        store.put("w", ELEMENTS, device="cuda:0")

    class Somewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **_options: Any) -> Any:
            raise AssertionError("an array that cannot be shared is not exported")

    with pytest.raises(cotensor.UnsupportedError, match="from_device=True") as raised:
        store.put("w", Somewhere())
    assert raised.value.field == "array"


def torch_has_the_device_of_an_array_as_current_one(store: cotensor.Store) -> None:
    import torch

    driver, entered = Driver(), []
    producer = Producer(driver, driver.allocate(), [100], 6)

    class Current:
        def __init__(self, ordinal: int) -> None:
            self.ordinal = ordinal

        def __enter__(self) -> None:
            entered.append(self.ordinal)

        def __exit__(self, *_exception: object) -> None:
            entered.append(None)

    class Elsewhere(torch.Tensor):
        def __dlpack_device__(self) -> Any:
            return (2, 0)

        def __dlpack__(self, **options: Any) -> Any:
            assert entered == [0], "torch records its event in the current device's stream"
            return producer.__dlpack__(**options)

    torch.cuda.device = Current  # type: ignore[assignment,misc]
    array = torch.zeros(100, dtype=torch.uint8).as_subclass(Elsewhere)
    assert store.put("w", array).tobytes() == b"\6" * 100
    assert entered == [0, None]


def torch_without_cuda(store: cotensor.Store) -> None:
    for shown in (store.put("w", ELEMENTS, device="cuda:0"), store.empty("x", 3, device="cuda:0")):
        with pytest.raises(cotensor.UnsupportedError, match="PyTorch has no CUDA"):
            shown.torch()


if __name__ == "__main__":
    main(globals())
