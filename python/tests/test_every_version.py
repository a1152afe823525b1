"""Watches of every version: nothing is left out up to a bound, and what is left out is counted."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Callable, List, Tuple

import pytest

np = pytest.importorskip("numpy")

from conftest import serving  # noqa: E402

import cotensor  # noqa: E402
from cotensor.aio import AsyncStore  # noqa: E402

MIB = 1 << 20
names = (f"every {number}" for number in itertools.count())


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return next(names)


def put_numbers(store: cotensor.Store, name: str, numbers: range) -> None:
    for number in numbers:
        store[name] = np.full(4, number)


def read_until(watch: cotensor.Watch, last: int) -> List[int]:
    """The numbers that are read, up to this one."""
    seen: List[int] = []
    while not seen or seen[-1] != last:
        change = watch.get(60)
        assert change.tensor is not None and change.tensor.version == change.version
        seen.append(int(change.tensor.numpy()[0]))
    return seen


def test_producer_at_full_speed_loses_no_version(store: cotensor.Store, writer: cotensor.Store, name: str) -> None:
    with store.watch(name=name, every=True, versions_max=4096) as watch:
        thread = threading.Thread(target=put_numbers, args=(writer, name, range(3000)))
        thread.start()
        seen = read_until(watch, 2999)
        thread.join()
        assert (seen, watch.dropped) == (list(range(3000)), 0)
        with pytest.raises(cotensor.TimedOutError):
            watch.get(0.01)


def test_slow_reader_counts_what_is_dropped(store: cotensor.Store, writer: cotensor.Store, name: str) -> None:
    with store.watch(name=name, every=True, versions_max=8) as watch:
        put_numbers(writer, name, range(100))
        assert read_until(watch, 99) == list(range(92, 100)) and watch.dropped == 92
        put_numbers(writer, name, range(100, 104))
        assert read_until(watch, 103) == [100, 101, 102, 103] and watch.dropped == 92


def test_seen_and_dropped_are_all_versions(store: cotensor.Store, writer: cotensor.Store, name: str) -> None:
    with store.watch(name=name, every=True, versions_max=5) as watch:
        thread = threading.Thread(target=put_numbers, args=(writer, name, range(2000)))
        thread.start()
        seen: List[int] = []
        while not seen or seen[-1] != 1999:
            change = watch.get(60)
            assert change.tensor is not None
            seen.append(int(change.tensor.numpy()[0]))
            time.sleep(0.0005)
        thread.join()
        assert seen == sorted(set(seen)) and len(seen) + watch.dropped == 2000 and watch.dropped > 0


def test_bytes_of_the_queue_are_bounded(store: cotensor.Store, writer: cotensor.Store, name: str) -> None:
    array = np.zeros(MIB, np.uint8)
    with store.watch(name=name, every=True, bytes_max=3 * MIB) as watch:
        for _ in range(10):
            writer[name] = array
        versions = [watch.get(60).version for _ in range(3)]
        assert versions == [8, 9, 10] and watch.dropped == 7


def test_existing_versions_removals_and_newest(store: cotensor.Store, writer: cotensor.Store, name: str) -> None:
    writer[name] = [1]
    with store.watch(name, every=True, existing=True) as every, store.watch(name) as newest:
        writer[name] = [2]
        writer[name] = [3]
        del writer[name]
        writer[name] = [4]
        found = [every.get(60) for _ in range(5)]
        assert [change.removed for change in found] == [False, False, False, True, False]
        values = [change.tensor.numpy().tolist() for change in found if change.tensor is not None]
        assert values == [[1], [2], [3], [4]] and found[3].tensor is None
        change = newest.get(60)
        assert change.tensor is None and change == found[4] and newest.dropped == 0


def test_tensors_that_are_not_kept_wait_for_the_reader(store: cotensor.Store, writer: cotensor.Store, name: str) -> None:
    with store.watch(name=name, every=True) as watch:
        for number in range(3):
            writer.put(name, [number], keep=False).release()
        tensors = [watch.get(60).tensor for _ in range(3)]
        assert [tensor.numpy().tolist() for tensor in tensors if tensor is not None] == [[0], [1], [2]]


def test_closed_watch_releases_its_versions(store: cotensor.Store, writer: cotensor.Store, name: str) -> None:
    def versions() -> int:
        return sum(tensor["name"] == name for tensor in writer.get_diagnostics()["tensors"])

    for end in (cotensor.Watch.close, lambda watch: None):
        watch = store.watch(name=name, every=True)
        put_numbers(writer, name, range(20))
        wait_for(lambda: versions() == 20)
        watch.get(60)
        end(watch)
        del watch
        del writer[name]
        wait_for(lambda: versions() == 0)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_reader_gives_memory_up_before_a_program_gets_none() -> None:
    with serving("--max-memory", "16MiB") as daemon, daemon.connect() as store, daemon.connect() as writer:
        with store.watch(name="x", every=True) as watch:
            for number in range(100):
                writer["x"] = np.full(MIB, number, np.uint8)
            seen = read_until(watch, 99)
            assert len(seen) + watch.dropped == 100 and watch.dropped >= 84


def test_queue_is_a_part_of_what_a_program_may_lease() -> None:
    with serving("--max-client-memory", "8MiB") as daemon, daemon.connect() as store, daemon.connect() as writer:
        with store.watch(name="x", every=True) as watch:
            for number in range(20):
                writer["x"] = np.full(MIB, number, np.uint8)
            assert read_until(watch, 19) == list(range(12, 20)) and watch.dropped == 12
            for number in range(20, 40):
                writer["x"] = np.full(MIB, number, np.uint8)
            # The program's own tensors come first.
            kept = [store.put(f"kept {number}", np.zeros(MIB, np.uint8)) for number in range(6)]
            seen = read_until(watch, 39)
            assert set(seen) >= {38, 39} and 8 + len(seen) + watch.dropped == 40
            assert len(kept) == 6


def test_killed_reader_leaves_no_memory() -> None:
    program = """
import cotensor, sys
watch = cotensor.connect(sys.argv[1]).watch(name="x", every=True)
watch.get()
print(1, flush=True)
watch.get()
input()
"""
    with serving() as daemon, daemon.connect() as writer:
        command = [sys.executable, "-c", program, str(daemon.socket)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            while not any("watch" in holder for holder in holders(writer)):
                writer["x"] = np.zeros(MIB, np.uint8)
            assert reader.stdout.readline() == b"1\n"
            for _ in range(20):
                writer["x"] = np.zeros(MIB, np.uint8)
            assert int(writer.get_stats()["total_tensors"]) >= 20
            reader.kill()
        wait_for(lambda: int(writer.get_stats()["total_tensors"]) == 1)


def holders(store: cotensor.Store) -> List[str]:
    tensors = store.get_diagnostics()["tensors"]
    return [holder for tensor in tensors for holder in tensor["holders"]]


def test_versions_are_counted_across_servers() -> None:
    with serving() as daemon, daemon.connect() as store, daemon.connect() as writer:
        put_numbers(writer, "x", range(-3, 0))
        with store.watch(name="x", every=True) as watch:
            put_numbers(writer, "x", range(5))
            assert read_until(watch, 1) == [0, 1]
            os.kill(daemon.info["server"], signal.SIGKILL)
            put_numbers(writer, "x", range(5, 10))
            seen = read_until(watch, 9)
            assert seen == sorted(seen) and 2 + len(seen) + watch.dropped == 10
            put_numbers(writer, "x", range(10, 20))
            assert read_until(watch, 19) == list(range(10, 20)) and 12 + len(seen) + watch.dropped == 20


def test_options_of_the_queue_are_checked(store: cotensor.Store, name: str) -> None:
    for wrong in (1, 4097):
        with pytest.raises(cotensor.InvalidError, match="versions_max"):
            store.watch(name=name, every=True, versions_max=wrong)
    with pytest.raises(cotensor.InvalidError, match="every=True"):
        store.watch(name=name, bytes_max=1)
    with pytest.raises(cotensor.InvalidError, match="every"):
        store.watch(name=name, every="yes")  # type: ignore[arg-type]


def test_watches_of_one_program_are_bounded() -> None:
    with serving() as daemon, daemon.connect() as store:
        watches = [store.watch(name="x", every=True) for _ in range(64)]
        with pytest.raises(cotensor.ConflictError, match="64 watches"):
            store.watch(name="x", every=True)
        watches.pop().close()
        store.watch(name="x", every=True).close()


def test_asyncio_sees_every_version(store: cotensor.Store, writer: cotensor.Store, name: str) -> None:
    async def program() -> Tuple[List[int], int]:
        seen: List[int] = []
        async with AsyncStore(store).watch(name=name, every=True, versions_max=4096) as changes:
            putting = asyncio.to_thread(put_numbers, writer, name, range(500))
            task = asyncio.ensure_future(putting)
            while not seen or seen[-1] != 499:
                change = await changes.get(60)
                assert change.tensor is not None
                seen.append(int(change.tensor.numpy()[0]))
            await task
            waiting = asyncio.ensure_future(changes.get())
            await asyncio.sleep(0)
            changes.close()
            with pytest.raises(cotensor.ConflictError):
                await waiting
            return seen, changes.dropped

    assert asyncio.run(program()) == (list(range(500)), 0)
