"""What processes do in the tests of `Store.producing` without a GPU: `python torch_producing_programs.py NAME SOCKET`.

PyTorch without a GPU makes no pool and no tensor there. Stand-ins have the calls that `cotensor.torch.producing` makes; they show
that the calls come in the right order with the right values, and nothing of what PyTorch does with them.
"""

from __future__ import annotations

import sys
from typing import Any, List

import pytest
import torch
from device_common import Driver, Producer
from producing_programs import Allocator, copies

import cotensor
from cotensor.torch import producing

calls: List[Any] = []


class Block:
    """A context that notes its begin and its end."""

    def __init__(self, *what: Any) -> None:
        self.what = what

    def __enter__(self) -> None:
        calls.append(("begin", *self.what))

    def __exit__(self, *_exception: object) -> None:
        calls.append(("end", *self.what))


class Pluggable:
    def __init__(self, path: str, allocate: str, free: str) -> None:
        calls.append((path, allocate, free))

    def allocator(self) -> str:
        return "allocator"


class Pool:
    def __init__(self, allocator: str) -> None:
        calls.append(("pool", allocator))


def stand_in() -> None:
    torch.cuda.is_available = lambda: True  # type: ignore[assignment]
    torch.cuda.device = lambda ordinal: Block("device", ordinal)  # type: ignore[assignment,misc]
    torch.cuda.MemPool = Pool  # type: ignore[assignment,misc]
    torch.cuda.use_mem_pool = lambda pool: Block("use", type(pool))  # type: ignore[assignment]
    torch.cuda.memory.CUDAPluggableAllocator = Pluggable  # type: ignore[assignment,misc]


def tensors_of_a_block_are_published_without_a_copy(store: cotensor.Store) -> None:
    stand_in()
    own = store.producing("cuda:0")
    library = (cotensor._native.__file__, producing.ALLOCATE, producing.FREE)
    assert calls == [("begin", "device", 0), library, ("pool", "allocator"), ("end", "device", 0)]
    for _ in range(2):
        calls.clear()
        with own as entered:
            assert entered is own and calls == [("begin", "device", 0), ("begin", "use", Pool)]
            address = Allocator().allocate(2 << 20)
            assert address is not None
        assert calls[2:] == [("end", "use", Pool), ("end", "device", 0)]
        tensor = store.put("w", Producer(Driver(), address, [100], 7))
        assert tensor.tobytes() == b"\7" * 100 and copies(store) == []


def errors_have_their_reason(store: cotensor.Store) -> None:
    with pytest.raises(cotensor.UnsupportedError, match="PyTorch with CUDA"):
        store.producing("cuda:0")
    stand_in()
    own = store.producing("cuda:0")
    with pytest.raises(torch.cuda.OutOfMemoryError) as raised, own:
        assert Allocator().allocate(2 << 30) is None
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")
    if sys.version_info >= (3, 11):
        assert any("bytes left" in note for note in raised.value.__notes__)
    del torch.cuda.MemPool
    with pytest.raises(cotensor.UnsupportedError, match="PyTorch 2.6"):
        store.producing("cuda:0")


def captured_stream_is_an_error(store: cotensor.Store) -> None:
    driver = Driver()
    producer = Producer(driver, driver.allocate(), [100], 6)
    torch.cuda.device = lambda ordinal: Block("device", ordinal)  # type: ignore[assignment,misc]
    torch.cuda.is_initialized = lambda: True  # type: ignore[assignment]

    class OnDevice(torch.Tensor):
        def __dlpack_device__(self) -> Any:
            return (2, 0)

        def __dlpack__(self, **options: Any) -> Any:
            return producer.__dlpack__(**options)

    array = torch.zeros(100, dtype=torch.uint8).as_subclass(OnDevice)
    for is_captured in (True, False):
        torch.cuda.is_current_stream_capturing = lambda: is_captured  # type: ignore[assignment] # noqa: B023
        if is_captured:
            with pytest.raises(cotensor.ConflictError, match="captured into a CUDA graph") as raised:
                store.put("w", array)
            assert raised.value.field == "array" and producer.streams == [], "no stream waits for the captured one"
        else:
            assert store.put("w", array).tobytes() == b"\6" * 100


if __name__ == "__main__":
    with cotensor.connect(sys.argv[2]) as opened:
        globals()[sys.argv[1]](opened)
    print("done", flush=True)
