"""What processes do in the tests of memory for `Store.producing`: `python producing_programs.py NAME SOCKET ARGUMENTS`.

The allocator's C functions are called by ctypes, as PyTorch calls them. No PyTorch with CUDA is needed.
"""

from __future__ import annotations

import ctypes as c
import os
import sys
from typing import Any, List, Optional

import device_common as devices
import numpy as np
import pytest
from device_common import UNIT, Consumer, Driver, Producer
from device_programs import machine, step
from functions_common import until

import cotensor
from cotensor import _native

LARGE = 3 << 20


class Allocator:
    """The functions that `torch.cuda.memory.CUDAPluggableAllocator` looks up."""

    def __init__(self) -> None:
        library = c.CDLL(_native.__file__)
        self._allocate, self._free = library.cotensor_device_alloc, library.cotensor_device_free
        self._allocate.restype, self._free.restype = c.c_void_p, None
        self._allocate.argtypes = [c.c_ssize_t, c.c_int, c.c_void_p]
        self._free.argtypes = [c.c_void_p, c.c_ssize_t, c.c_int, c.c_void_p]

    def allocate(self, nbytes: int, device: int = 0, stream: int = 0) -> Optional[int]:
        return self._allocate(nbytes, device, stream)

    def free(self, address: Optional[int], nbytes: int, device: int = 0, stream: int = 0) -> None:
        self._free(address, nbytes, device, stream)


def allocated(nbytes: int = LARGE) -> int:
    address = Allocator().allocate(nbytes)
    assert address is not None, _native.allocator_failure()
    return address


def copies(store: cotensor.Store, reason: str = "put") -> List[Any]:
    """The copies of arrays on their device, or those for another reason."""
    return [found for found in store.get_diagnostics()["recent_copies"] if found["reason"] == reason]


def published_where_it_is(store: cotensor.Store) -> None:
    driver, address, own = Driver(), allocated(), machine()
    assert own.used() == 2 * UNIT and driver.read(address, 8) == bytes(8)
    array = Producer(driver, address + 512, [2, 50], 7)
    tensor = store.put("w", array, keep=False)
    assert own.used() == 2 * UNIT and copies(store) == [], "no copy"
    assert (tensor.device, tensor.memory, tensor.shape) == ("cuda:0", "slab", (2, 50))
    assert tensor.tobytes() == b"\7" * 100, "the publication waits for the work of the array"
    assert tensor.data_ptr != address + 512
    assert driver.fill(tensor.data_ptr, 1, 4) == devices.INVALID_VALUE, "its addresses are read-only"
    with cotensor.connect(sys.argv[2]) as other:
        shown = Consumer(other["w"].__dlpack__())
        assert driver.read(shown.address, 100) == b"\7" * 100
        # A program that writes its array all the same changes it for all.
        assert driver.fill(address + 512, 8, 1) == 0
        driver.wait()
        assert driver.read(shown.address, 2) == b"\10\7"
        shown.delete()
    stats = next(found for found in store.get_stats()["devices"] if found["device"] == "cuda:0")
    assert stats["memory_usage_bytes"] == 2 * UNIT
    assert array.deleted == 0
    tensor.release()
    until(lambda: array.deleted == 1)
    Allocator().free(address, LARGE, stream=driver.stream)
    until(lambda: own.used() == 0)


def kept_publication(store: cotensor.Store) -> None:
    """`store[name] = array`, and weights."""
    driver, address = Driver(), allocated()
    first, second = Producer(driver, address, [100], 3), Producer(driver, address + 1024, [100], 4)
    store["a"] = first
    store.put("b", second, kind="weight")
    assert (store["a"].tobytes(), store["b"].tobytes(), copies(store)) == (b"\3" * 100, b"\4" * 100, [])
    store.remove("a")
    until(lambda: first.deleted == 1)
    assert second.deleted == 0 and store["b"].tobytes() == b"\4" * 100
    del store["b"]
    until(lambda: second.deleted == 1)


def freed_while_published(store: cotensor.Store) -> None:
    driver, address, own = Driver(), allocated(), machine()
    tensor = store.put("w", Producer(driver, address, [100], 7))
    # Work that is left in the stream finds its memory.
    assert driver.fill(address + 4096, 1, 100) == 0
    Allocator().free(address, LARGE, stream=driver.stream)
    driver.wait()
    assert tensor.tobytes() == b"\7" * 100 and own.used() == 2 * UNIT
    assert driver.fill(address, 1, 1) == devices.INVALID_VALUE
    # Another allocation gets the address or another one.
    again = allocated()
    assert store.put("x", Producer(driver, again, [100], 9)).tobytes() == b"\x09" * 100
    assert store["w"].tobytes() == b"\7" * 100
    Allocator().free(None, 0)


def copied_where_it_must_be(store: cotensor.Store) -> None:
    driver, address = Driver(), allocated()
    whole = Producer(driver, address, [1024], 5)
    store.put("w", whole)
    for array, options, count in [
        (Producer(driver, address, [1024]), {}, 1),  # published already
        (Producer(driver, address + 4, [100]), {}, 2),  # no start of a tensor
        (Producer(driver, address + 512, [100]), {"sealed": True}, 3),
        (Producer(driver, address + 512, [100]), {"device": "cpu"}, 3),
    ]:
        assert store.put("x", array, **options).tobytes()[:100] == b"\5" * 100  # type: ignore[arg-type]
        assert array.deleted == 1 and len(copies(store)) == count
    with pytest.raises(cotensor.UnsupportedError, match="side by side"):
        store.put("x", Producer(driver, address, [10], strides=[2]))
    with pytest.raises(cotensor.InvalidError):
        store.put("", Producer(driver, address + 2048, [10]))


def sealed_by_the_daemon(store: cotensor.Store) -> None:
    """A daemon with `--seal-all`."""
    driver, address = Driver(), allocated()
    array = Producer(driver, address, [100], 7)
    tensor = store.put("w", array)
    assert (tensor.memory, tensor.tobytes(), array.deleted, len(copies(store))) == ("device", b"\7" * 100, 1, 1)


def without_room(store: cotensor.Store) -> None:
    allocator, own = Allocator(), machine()
    own.set("memory 4194304")
    first = allocator.allocate(4 << 20)
    assert first is not None and allocator.allocate(1) is None
    reason = _native.allocator_failure()
    assert reason is not None and "bytes left" in reason and _native.allocator_failure() is None
    allocator.free(first, 4 << 20)
    assert allocator.allocate(1) is not None
    for size, device in ((0, 0), (-1, 0), (1, 7), (1, -1)):
        assert allocator.allocate(size, device) is None
    assert "no CUDA device -1" in (_native.allocator_failure() or "")
    allocator.free(12345, 1)
    assert "no memory that was produced" in (_native.allocator_failure() or "")


def budget_has_no_room(store: cotensor.Store) -> None:
    """The block of the array does not fit into the budget of 64 MiB, and a copy of the array does."""
    driver, address = Driver(), allocated(80 << 20)
    array = Producer(driver, address, [100], 7)
    assert store.put("w", array).tobytes() == b"\7" * 100
    assert (array.deleted, len(copies(store))) == (1, 1)
    with pytest.raises(cotensor.OverBudgetError):
        store.put("x", Producer(driver, address, [80 << 20]))


def lost_connection_keeps_the_array(store: cotensor.Store) -> None:
    driver, address = Driver(), allocated()
    array = Producer(driver, address, [100], 7)
    store.put("w", array)
    step("published")
    assert store["w"].tobytes() == b"\7" * 100
    store.remove("w")
    again = Producer(driver, address, [100])
    store.put("x", again)
    assert (store["x"].tobytes(), array.deleted) == (b"\7" * 100, 0), "no news of leases of the first session"
    store.remove("x")
    until(lambda: again.deleted == 1)


def closed_store_leaves_the_arrays_of_others(store: cotensor.Store) -> None:
    driver, address = Driver(), allocated()
    first, second = Producer(driver, address, [100], 7), Producer(driver, address + 512, [100], 8)
    store.put("w", first)
    with cotensor.connect(sys.argv[2]) as other:
        other.put("x", second)
    assert (store["w"].tobytes(), store["x"].tobytes()) == (b"\7" * 100, b"\10" * 100)
    store.remove("w")
    until(lambda: first.deleted == 1)
    store.remove("x")
    assert second.deleted == 0, "no news of leases after the end of its store"


def publishes(store: cotensor.Store) -> None:
    array = Producer(Driver(), allocated(), [4, 24], 7)
    store.put("w", array)
    step("published")


def reads(store: cotensor.Store) -> None:
    driver, array = Driver(), Consumer(store["w"].__dlpack__())
    assert driver.read(array.address, 96) == b"\7" * 96
    step("read")
    assert driver.read(array.address, 96) == b"\7" * 96


def another_gpu(store: cotensor.Store) -> None:
    """A process with two devices that read each other's memory, or not: the second argument."""
    is_peer = sys.argv[3] == "peer"
    elements = np.arange(24, dtype="float32").reshape(4, 6)
    published = store.put("w", elements, device="cuda:0")
    own, driver = machine(), Driver(1)
    used = own.used(1)
    tensor = store.get("w", device="cuda:1")
    copied = [found for found in copies(store, "device transfer") if found["tensor"].startswith("w[")]
    assert [found["bytes"] for found in copied] == ([] if is_peer else [96])
    assert (tensor.device, tensor.__dlpack_device__(), tensor.shape) == ("cuda:1", (2, 1), (4, 6))
    for shown, expected in ((tensor, elements), (tensor[1:3], elements[1:3])):
        array = Consumer(shown.__dlpack__(max_version=(1, 0)))
        assert (array.device, array.flags) == ((2, 1), 1)
        assert driver.read(array.address, expected.nbytes) == expected.tobytes()
        array.delete()
    assert tensor.tobytes() == elements.tobytes() and "cuda:1" in repr(tensor)
    assert own.used(1) == (used if is_peer else used + UNIT), "one copy at most"
    again = store.get("w", device="cuda:1")
    with cotensor.connect(sys.argv[2]) as other:
        third = other.get("w", device="cuda:1")
        assert third.tobytes() == elements.tobytes() and own.used(1) == (used if is_peer else used + UNIT)
        del third
    assert (again.data_ptr == tensor.data_ptr) and (tensor.data_ptr == published.data_ptr) is is_peer
    # Work of the other device ends before the address does.
    array = Consumer(again.__dlpack__())
    target = c.create_string_buffer(96)
    driver.call("cuMemcpyDtoHAsync_v2", target, c.c_uint64(array.address), c.c_size_t(96), c.c_uint64(driver.stream))
    array.delete()
    del tensor, again, shown, published
    store.remove("w")
    until(lambda: own.used(0) == own.used(1) == 0)
    assert target.raw == elements.tobytes()


def copy_on_the_gpu(store: cotensor.Store) -> None:
    """A tensor of the host for programs of a GPU, and what has no way there."""
    elements = np.arange(24, dtype="float32").reshape(4, 6)
    store["h"] = elements
    first, second = store.get("h", device="cuda:0"), store.get("h", device="cuda:0")
    assert (first.device, first.dtype, first.shape) == ("cuda:0", "float32", (4, 6))
    assert first.tobytes() == elements.tobytes() and first.data_ptr == second.data_ptr
    assert store.get("h", device="cpu").device == "cpu"
    assert store.get("missing", None, device="cuda:0") is None
    store.put_group("g", {"a": elements})
    with pytest.raises(cotensor.UnsupportedError, match="groups"):
        store.get("g", device="cuda:0")
    store.put("d", elements, device="cuda:0")
    with pytest.raises(cotensor.UnsupportedError, match="copy_to"):
        store.get("d", device="cpu")
    with pytest.raises(cotensor.UnsupportedError, match="cuda:7"):
        store.get("d", device="cuda:7")
    with pytest.raises(cotensor.InvalidError) as raised:
        store.get("d", device="tpu")
    assert raised.value.field == "device"


def producing_needs_a_gpu(store: cotensor.Store) -> None:
    for device, error in (("cpu", cotensor.InvalidError), ("cuda:7", cotensor.UnsupportedError), ("x", cotensor.InvalidError)):
        with pytest.raises(error):
            store.producing(device)
    with pytest.raises(cotensor.UnsupportedError, match="local store"):
        cotensor.Store().producing("cuda:0")


if __name__ == "__main__":
    assert "COTENSOR_CUDA_DRIVER" in os.environ
    with cotensor.connect(sys.argv[2]) as opened:
        globals()[sys.argv[1]](opened)
    print("done", flush=True)
