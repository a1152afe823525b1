"""Values of tensors: single numbers, the buffer protocol, own copies."""

from __future__ import annotations

import gc
import hashlib
import math
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from conftest import serving  # noqa: E402

import cotensor  # noqa: E402

NUMBERS = [
    ("bool", [True, False]),
    *((f"{kind}int{bits}", [0, 1, 100]) for kind in ("", "u") for bits in (8, 16, 32, 64)),
    *((f"int{bits}", [-1, -(1 << (bits - 1))]) for bits in (8, 16, 32, 64)),
    ("uint64", [(1 << 64) - 1]),
    *((f"float{bits}", [0.0, -1.5, 0.333, math.inf, -math.inf, 6e-8]) for bits in (16, 32, 64)),
]


@pytest.mark.parametrize(("dtype", "values"), NUMBERS)
def test_item_is_the_number_of_numpy(store: cotensor.Store, dtype: str, values: list[Any]) -> None:
    array = np.array(values, dtype)
    tensor = store.put("numbers", array)
    for index in range(len(values)):
        found, expected = tensor[index].item(), array[index].item()
        assert type(found) is type(expected) and found == expected
    one = store.put("one", array[:1].reshape(1, 1, 1))
    assert one.item() == array[0].item()


def test_item_of_not_a_number_and_of_several(store: cotensor.Store) -> None:
    for dtype in ("float16", "float32", "float64"):
        assert math.isnan(store.put("nan", np.array(np.nan, dtype)).item())
    for shape in ((0,), (2,), (2, 3)):
        with pytest.raises(ValueError, match="elements"):
            store.put("several", np.zeros(shape)).item()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"])
def test_memoryview_equals_that_of_numpy(store: cotensor.Store, dtype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    tensor = store.put("viewed", array)
    for shown, expected in (
        (memoryview(tensor), memoryview(array)),
        (memoryview(tensor[1, ::2]), memoryview(array[1, ::2])),
        (memoryview(tensor[0, 0, 0]), memoryview(array[0, 0, 0])),
    ):
        assert (shown.shape, shown.strides, shown.itemsize) == (expected.shape, expected.strides, expected.itemsize)
        assert np.dtype(shown.format) == np.dtype(dtype)
        assert shown.readonly and shown.tobytes() == expected.tobytes()
    assert np.frombuffer(tensor, dtype).tolist() == array.ravel().tolist()


def test_buffer_consumers_read_the_published_bytes(store: cotensor.Store, tmp_path: Path) -> None:
    array = np.arange(1000, dtype="float32")
    tensor = store.put("read", array)
    assert hashlib.sha256(tensor).digest() == hashlib.sha256(array.tobytes()).digest()
    assert bytes(tensor) == array.tobytes() and bytearray(tensor) == array.tobytes()
    with open(tmp_path / "raw", "wb") as file:
        file.write(tensor)
    assert (tmp_path / "raw").read_bytes() == array.tobytes()
    with pytest.raises((TypeError, BufferError), match="read-only|read-write"):
        (tmp_path / "raw").open("rb").readinto(tensor)
    with pytest.raises(BufferError, match="contiguous"):
        hashlib.sha256(tensor[::2])
    assert np.asarray(memoryview(tensor[::2])).tolist() == array[::2].tolist()


def test_memoryview_keeps_the_tensor(store: cotensor.Store) -> None:
    tensor = store.put("kept", np.arange(10), keep=False)
    view = memoryview(tensor)
    tensor.release()
    with pytest.raises(cotensor.ConflictError):
        memoryview(tensor)
    del tensor
    gc.collect()
    assert view.tolist() == list(range(10))
    assert "kept" in store
    view.release()
    gc.collect()
    assert "kept" not in store


def test_types_without_a_buffer_code_are_read_as_bytes_only(store: cotensor.Store) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    array = np.array([1.5, -2.0], bfloat16)
    tensor = store.put("bf16", array)
    assert tensor[1].item() == -2.0
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(tensor)
    assert hashlib.sha256(tensor).digest() == hashlib.sha256(array.tobytes()).digest()


def test_detached_copy_outlives_its_store() -> None:
    with serving() as daemon:
        with daemon.connect() as store:
            array = np.arange(12, dtype="int16").reshape(3, 4)
            tensor = store.put("x", array, kind="weight", keep=False)
            own, part = tensor.detach(), tensor[:, 1].detach()
            group = store.put_group("g", {"a": [1, 2], "b": [3.5]}).detach()
            tensor.release()
            assert "x" not in store, "a detached copy holds no lease"
    assert (own.name, own.kind, own.dtype, own.shape) == ("x", "weight", "int16", (3, 4))
    assert np.array_equal(own.numpy(), array)
    assert part.shape == (3,) and part.numpy().tolist() == array[:, 1].tolist()
    assert {name: member.numpy().tolist() for name, member in group.members().items()} == {"a": [1, 2], "b": [3.5]}


def test_detached_copy_is_counted(store: cotensor.Store) -> None:
    def private() -> int:
        copies = {each["reason"]: each["bytes"] for each in store.get_stats()["copies"]}
        return copies.get("private copy", 0)

    tensor = store.put("counted", np.zeros(1000))
    before = private()
    tensor.detach()
    assert private() == before + 8000


def test_remove_of_a_missing_name(store: cotensor.Store) -> None:
    with pytest.raises(KeyError, match="nothing"):
        store.remove("nothing")
    store.remove("nothing", missing_ok=True)
    store.put("something", [1])
    store.remove("something", missing_ok=True)
    assert "something" not in store
    with pytest.raises(cotensor.InvalidError, match="missing_ok"):
        store.remove("nothing", missing_ok="yes")


def test_connect_takes_a_timeout() -> None:
    with serving() as daemon, cotensor.connect(daemon.socket, timeout=30) as store:
        assert store.names() == []
    with pytest.raises(cotensor.InvalidError, match="timeout"):
        cotensor.connect(daemon.socket, timeout=-1)
