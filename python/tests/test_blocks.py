"""Tensors in memory that their producer uses again, after its connection has ended."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from conftest import Daemon
from functions_common import until

import cotensor

BYTES = 600_000


def sockets() -> set[int]:
    """The descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
        except FileNotFoundError:  # the descriptor of the listing
            pass
    return found


def test_tensors_stay_when_the_connection_of_their_producer_ends(daemon: Daemon) -> None:
    with daemon.connect() as reader:
        before = sockets()
        with daemon.connect() as producer:
            connection = sockets() - before
            producer["kept"] = np.full(BYTES, 1, np.uint8)
            held = reader["kept"].numpy()
            for descriptor in connection:
                with socket.socket(fileno=os.dup(descriptor)) as ended:
                    ended.shutdown(socket.SHUT_RDWR)
            for version in range(2, 10):
                producer[f"other {version}"] = np.full(BYTES, version, np.uint8)
                assert np.unique(held).tolist() == [1]
            assert np.unique(reader["kept"].numpy()).tolist() == [1]
            assert np.unique(reader["other 5"].numpy()).tolist() == [5]


def test_memory_is_prefaulted_for_puts_and_for_sealed_tensors(daemon: Daemon) -> None:
    with daemon.connect() as store:
        assert store.prefault(BYTES, 3) == 3
        ready = store.get_stats()["ready_bytes"]
        assert ready >= 3 * BYTES
        store["plain"] = np.full(BYTES, 1, np.uint8)
        assert ready - BYTES - 4096 <= store.get_stats()["ready_bytes"] < ready
        assert store.prefault(BYTES, sealed=True) == 1
        sealed = store.put("sealed", np.full(BYTES, 2, np.uint8), sealed=True)
        assert np.unique(store["plain"].numpy()).tolist() == [1] and np.unique(sealed.numpy()).tolist() == [2]
        assert store.prefault(40 << 20, 2) == 1, "at most 64 MiB are free"


def helpers() -> int:
    """The threads of this process that share large copies."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            names.append(Path("/proc/self/task", thread, "comm").read_text().strip())
    return names.count("cotensor-helper")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor has no helpers")
def test_helpers_share_large_copies_into_arrays_of_the_program(store: cotensor.Store) -> None:
    source = np.resize(np.arange(251, dtype=np.uint8), 16 << 20)
    tensor, target = store.put("large", source, keep=False), np.zeros_like(source)
    # Those of the put end when they are idle.
    until(lambda: helpers() == 0)

    def copy() -> bool:
        tensor.copy_to(target)
        return helpers() > 0

    until(copy)
    assert np.array_equal(target, source)


def test_small_sealed_tensors_have_memory_of_their_own(daemon: Daemon) -> None:
    def memfds() -> int:
        files = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
        return len([file for file in files if file.is_symlink() and os.readlink(file).startswith("/memfd:")])

    with daemon.connect() as store:
        small = np.ones(16, np.float32)
        held = [store.put("first", small)]
        before = memfds()
        held.append(store.put("plain", small))
        assert memfds() == before, "in the slab of the first one"
        held += [store.put("sealed", small, sealed=True), store.put("weight", small, kind="weight")]
        assert memfds() == before + 2
        assert all([(one.numpy() == small).all() for one in held])
