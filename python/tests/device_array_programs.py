"""How processes with a GPU fill memory of the device, in builders and by arrays: `python device_array_programs.py NAME SOCKET`.

Each runs in a process of its own, because a process keeps the driver that it has loaded.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import device_common as devices
import numpy as np
import pytest
from device_common import Consumer, Driver, InterfaceArray, Producer
from device_programs_common import machine, main
from functions_common import until

import cotensor

ELEMENTS = np.arange(24, dtype="float32").reshape(4, 6)
#: Flags of DLPack.
READ_ONLY, COPIED = 1, 2


def builder_is_filled_on_the_device(store: cotensor.Store) -> None:
    builder, driver = store.empty("w", (4, 6), "uint8", device="cuda:0"), Driver()
    assert (builder.device, builder.__dlpack_device__()) == ("cuda:0", (2, 0))
    array = Consumer(builder.__dlpack__(max_version=(1, 0), stream=driver.stream))
    assert (array.flags, array.device, array.address) == (0, (2, 0), builder.data_ptr)
    assert builder.__cuda_array_interface__["data"] == (builder.data_ptr, False)
    assert driver.read(array.address, 24) == bytes(24)
    for call in (builder.numpy, builder._fileno, partial(np.asarray, builder)):
        with pytest.raises(cotensor.UnsupportedError, match="device|cuda:0"):
            call()
    for forbidden in ({"copy": True}, {"dl_device": (1, 0)}, {"stream": 0}):
        with pytest.raises(BufferError):
            builder.__dlpack__(**forbidden)
    # A later consumer sees the work of earlier ones.
    other = Driver()
    assert driver.fill(array.address, 5, 24) == 0
    Consumer(builder.__dlpack__(stream=other.stream)).delete()
    assert other.read(array.address, 24) == b"\5" * 24
    assert driver.fill(array.address, 6, 24) == 0
    assert other.read(builder.__cuda_array_interface__["data"][0], 24) == b"\6" * 24
    assert driver.fill(array.address, 7, 24) == 0
    # The work is still in the stream: the publication waits for it.
    tensor = builder.publish()
    assert tensor.tobytes() == b"\7" * 24 and tensor.data_ptr == array.address
    assert driver.fill(array.address, 8, 24) == devices.INVALID_VALUE
    del builder, call, tensor
    store.remove("w")
    assert driver.read(array.address, 24) == b"\7" * 24, "the array keeps the memory"
    array.delete()
    until(lambda: machine().used() == 0)


def publication_of_a_stream_waits_for_it_alone(store: cotensor.Store) -> None:
    driver, own = Driver(), machine()
    builder = store.empty("w", 24, "uint8", device="cuda:0")
    array = Consumer(builder.__dlpack__(stream=driver.stream))
    assert driver.fill(array.address, 7, 24) == 0
    # As work that waits for another process.
    own.set("fail cuCtxSynchronize 4711")
    for wrong in (-1, "x", 1.5):
        with pytest.raises(cotensor.InvalidError, match="cuda_stream") as raised:
            builder.publish(stream=wrong)  # type: ignore[arg-type]
        assert raised.value.field == "stream"
    with pytest.raises(cotensor.IoError, match="stream"):
        builder.publish(stream=12345)
    assert builder.publish(stream=driver.stream).tobytes() == b"\7" * 24
    own.set()
    array.delete()
    with pytest.raises(cotensor.InvalidError, match="on the host") as raised:
        store.empty("h", 3).publish(stream=driver.stream)
    assert raised.value.field == "stream"


def builder_takes_arrays_of_both_places(store: cotensor.Store) -> None:
    driver = Driver()
    with store.empty("w", (4, 6), "float32", device="cuda:0") as builder:
        builder.write(ELEMENTS.T.copy().T)
    assert store["w"].tobytes() == ELEMENTS.tobytes()
    with store.empty("x", (4, 6), "float32", device="cuda:0") as builder:
        builder.write(store["w"])
    assert store["x"].tobytes() == ELEMENTS.tobytes()
    # Work of other code on the same memory ends first.
    source = driver.allocate()
    for value, array in ((3, ELEMENTS.view("uint8")), (4, Producer(driver, source, [4, 24], 4))):
        with store.empty("z", (4, 24), "uint8", device="cuda:0") as builder:
            shown = Consumer(builder.__dlpack__())
            assert driver.fill(shown.address, 7, 96) == 0
            builder.write(array)
            driver.wait()
            assert driver.read(shown.address, 96) == (ELEMENTS.tobytes() if value == 3 else bytes([value]) * 96)
        shown.delete()
    builder = store.empty("y", (4, 6), device="cuda:0")
    with pytest.raises(cotensor.InvalidError, match="does not fit"):
        builder.write(Producer(driver, driver.allocate(), [96]))
    builder.discard()
    with pytest.raises(cotensor.ConflictError):
        builder.publish()


def failed_publication_keeps_the_address(store: cotensor.Store) -> None:
    builder, driver = store.empty("w", 24, "uint8", device="cuda:0"), Driver()
    array = Consumer(builder.__dlpack__())
    machine().set("fail cuMemExportToShareableHandle 999")
    with pytest.raises(cotensor.IoError, match="exporting"):
        builder.publish()
    machine().set()
    assert driver.read(array.address, 24) == bytes(24), "the array still has its memory"
    array.delete()
    del builder
    until(lambda: machine().used() == 0)
    assert "w" not in store


def device_arrays_are_copied_on_their_device(store: cotensor.Store) -> None:
    driver = Driver()
    source = driver.allocate()
    for value, options in ((1, {}), (2, {"device": "cuda:0"}), (3, {"sealed": True, "keep": False})):
        array = Producer(driver, source, [100], value)
        tensor = store.put("w", array, **options)
        assert (tensor.device, tensor.dtype, tensor.shape) == ("cuda:0", "uint8", (100,))
        assert tensor.tobytes() == bytes([value]) * 100, "the copy follows the producer's work in its stream"
        (stream,) = array.streams
        assert type(stream) is int and stream > 2, "a stream of the driver, not a default one"
        assert array.deleted == 1 and tensor.data_ptr != source
    assert driver.fill(source, 9, 100) == 0
    driver.wait()
    assert tensor.tobytes() == b"\3" * 100
    store["x"] = Producer(driver, source, [100])
    assert store["x"].device == "cuda:0" and store["x"].tobytes() == b"\x09" * 100
    again = store.put("y", store["x"])
    assert again.device == "cuda:0" and again.tobytes() == b"\x09" * 100
    for options in ({"from_device": True}, {"device": "cpu"}):
        host = store.put("z", store["x"], **options)
        assert host.device == "cpu" and host.tobytes() == b"\x09" * 100
    with pytest.raises(cotensor.UnsupportedError, match="side by side"):
        store.put("w", Producer(driver, source, [100], strides=[2]))
    with pytest.raises(cotensor.UnsupportedError, match="put"):
        store.put_many({"m": Producer(driver, source, [100])})
    # Numbers that a product in 64 bits does not hold.
    huge = 1 << 62
    with pytest.raises(cotensor.InvalidError, match="spans more"):
        store.put("e", Producer(driver, source, [0, huge, 4]))
    assert store.put("e", Producer(driver, source, [0, 1], strides=[huge, -huge])).shape == (0, 1)
    for shape, strides in (([huge, 4], None), ([1, huge, 4], None)):
        with pytest.raises((cotensor.InvalidError, cotensor.UnsupportedError), match="too large"):
            store.put("w", Producer(driver, source, shape, strides=strides))
    reasons = [copied["reason"] for copied in store.get_diagnostics()["recent_copies"]]
    assert "put" in {reason.lower() for reason in reasons}, reasons


def interface_arrays_are_copied_on_their_device(store: cotensor.Store) -> None:
    driver = Driver()
    source = driver.allocate()
    whole = {"version": 3, "typestr": "<i4", "shape": (5, 5), "data": (source, False), "stream": driver.stream}
    assert driver.fill(source, 1, 100) == 0
    tensor = store.put("w", InterfaceArray(whole))
    assert (tensor.device, tensor.dtype, tensor.shape) == ("cuda:0", "int32", (5, 5))
    assert tensor.tobytes() == b"\1" * 100, "the stream of the interface was waited for"
    assert driver.fill(source, 2, 100) == 0
    with ThreadPoolExecutor(1) as threads:
        # The driver lets another thread have no current context.
        tensor = threads.submit(store.put, "w", InterfaceArray({**whole, "stream": None})).result()
    assert tensor.device == "cuda:0" and tensor.tobytes() == b"\1" * 100
    older = {**whole, "version": 2, "strides": (20, 4)}
    del older["stream"]
    assert store.put("w", InterfaceArray(older)).tobytes() == b"\2" * 100, "any stream may be meant"
    for change, error in (
        ({"mask": object()}, cotensor.UnsupportedError),
        ({"typestr": "<M8"}, cotensor.UnsupportedError),
        ({"typestr": ">i4"}, cotensor.UnsupportedError),
        ({"strides": (4, 20)}, cotensor.UnsupportedError),
        ({"data": (4096, False)}, cotensor.UnsupportedError),
        ({"data": None}, cotensor.InvalidError),
        ({"data": (0, False)}, cotensor.InvalidError),
        ({"data": source}, cotensor.InvalidError),
        ({"typestr": 4}, cotensor.InvalidError),
        ({"shape": (-1, 5)}, cotensor.InvalidError),
        ({"shape": (1 << 62, 4), "strides": (16, 4)}, cotensor.InvalidError),
        ({"strides": "row"}, cotensor.InvalidError),
        ({"version": "3"}, cotensor.InvalidError),
        ({"stream": "x"}, cotensor.InvalidError),
        ({"stream": 0}, cotensor.InvalidError),
    ):
        with pytest.raises(error) as raised:
            store.put("w", InterfaceArray({**whole, **change}))
        assert raised.value.field == "array", change
    empty = {**whole, "shape": (0, 1 << 62, 4), "strides": (1 << 62, 16, 4), "stream": None}
    with pytest.raises(cotensor.InvalidError, match="spans more"):
        store.put("e", InterfaceArray(empty))
    for interface in (3, [whole]):
        with pytest.raises(cotensor.InvalidError, match="dict") as raised:
            store.put("w", InterfaceArray(interface))  # type: ignore[arg-type]
        assert raised.value.field == "array"
    with pytest.raises(cotensor.InvalidError, match="address 0"):
        store.put("w", InterfaceArray({**whole, "data": (0, False)}), from_device=True)


if __name__ == "__main__":
    main(globals())
