"""Writes into read-only arrays of a store, which torch permits.

A write neither ends the process nor is visible in another process or another ``Tensor`` object. The writers are processes of
their own, because a faulty mapping would end them with a signal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

import cotensor  # noqa: E402

#: Bytes of tensors in a slab and of tensors with memory of their own: around a page, and around the limit of 256 KiB.
SIZES = [16, 10_000, 256 << 10, (256 << 10) + 8, 2 << 20]
VARIANTS = ["put", "get", "asarray", "window", "address", "dlpack", "inherited", "in-a-child", "of-another"]
WRITER = Path(__file__).with_name("inplace_writer.py")


class Writer:
    """A process of inplace_writer.py, which executes each case in a child."""

    def __init__(self, socket: str) -> None:
        command = [sys.executable, str(WRITER), socket]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        return self._process.stdout.readline().decode().strip()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def writer(daemon: Any) -> Iterator[Writer]:
    """A writer with the daemon's store."""
    running = Writer(str(daemon.socket))
    yield running
    running.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", VARIANTS)
def test_in_place_writes_are_private(daemon: Any, writer: Writer, size: int, how: str) -> None:
    array = np.arange(size // 8)
    with daemon.connect() as store:
        if how == "of-another":
            theirs = store.put("x", array)
        assert writer.send(f"{how} {size}") == "unharmed"
        # The child still runs, with its lease and its arrays.
        assert (store.get("x").numpy() == array).all()
        assert writer.send("end") == "ended 0"
        if how == "of-another":
            assert (theirs.numpy() == array).all()
        store.remove("x")


def test_in_place_writes_are_private_in_a_local_store() -> None:
    writer = Writer("")
    for how in VARIANTS[:-1]:
        for size in SIZES:
            assert writer.send(f"{how} {size}") == "unharmed", (how, size)
            assert writer.send("end") == "ended 0", (how, size)
    writer.close()


def test_arrays_of_one_tensor_object_share_writes(store: cotensor.Store) -> None:
    import torch

    tensor, other = store.put("x", np.zeros(1000)), store.get("x")
    window = tensor[10:20]
    torch.from_numpy(tensor.numpy()).fill_(1)
    assert tensor.numpy().all() and window.numpy().all() and not tensor.torch().any()
    assert not other.numpy().any() and not store.get("x").torch().any()
    assert tensor.private_bytes > 0 and other.private_bytes == 0
    # A written array is published with the writes; its tensor, without them.
    assert store.put("written", tensor.numpy()).numpy().all()
    assert not store.put("unwritten", tensor).numpy().any()
