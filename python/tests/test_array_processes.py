"""Arrays in forked and spawned processes, and resources that remain after release."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from typing import Any, Callable

import pytest

np = pytest.importorskip("numpy")

from functions_common import until  # noqa: E402

import cotensor  # noqa: E402


def in_child(work: Callable[[], object]) -> int:
    """Runs `work` in a forked child. Returns the exit code, which is 1 after an exception."""
    child = os.fork()
    if child == 0:
        try:
            work()
            gc.collect()
            os._exit(0)
        except BaseException as failure:
            os.write(2, f"{type(failure).__name__}: {failure}\n".encode())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_forked_child_connects_again(daemon: Any) -> None:
    store = daemon.connect()
    tensor = store.put("inherited", np.arange(100_000), keep=False)
    array = tensor.numpy()

    def work() -> None:
        nonlocal tensor
        assert array[99_999] == 99_999, "inherited arrays stay readable"
        assert store.get("inherited").numpy()[5] == 5
        store.put("of-the-child", np.ones(10))
        del tensor

    assert in_child(work) == 0
    assert store.get("of-the-child").numpy().sum() == 10
    assert tensor.holders and store.get("inherited").numpy()[7] == 7, "the child released no lease of its parent"
    store.close()


def test_parents_local_store_raises_in_forked_child() -> None:
    store = cotensor.Store()
    tensor = store.put("inside", np.arange(100_000), keep=False)
    small = store.put("small", np.arange(10))
    shown = (tensor.numpy(), small.numpy())

    def work() -> None:
        nonlocal tensor, small
        assert shown[0][99_999] == 99_999 and shown[1][9] == 9
        for use in (lambda: store.get("inside"), lambda: store.put("x", [1]), store.names, lambda: store.empty("x", 1)):
            try:
                use()
            except cotensor.ConflictError as error:
                assert "parent process" in str(error)
            else:
                raise AssertionError("a store of the parent's was used")
        assert "closed" in repr(store) or "Store" in repr(store)
        own = cotensor.Store()
        assert own.put("own", np.ones(3)).numpy().sum() == 3
        del tensor, small

    assert in_child(work) == 0
    assert store.get("inside").numpy()[3] == 3 and store.get("small").numpy()[3] == 3


def test_tensors_are_published_while_a_forked_child_runs(daemon: Any) -> None:
    """A running child has copies of its parent's mappings, which must not prevent sealing."""
    for store in (cotensor.Store(), daemon.connect()):
        given_up = store.empty("given-up", 1 << 20)
        given_up.discard()
        del given_up
        store.put("before", np.ones(1 << 20, "uint8"), keep=False)
        builder = store.empty("builder", 1 << 20, "uint8")
        builder.numpy()[:] = 4
        ready, end = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(end[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        assert (builder.publish().numpy() == 4).all()
        for size in (10, 300_000, 1 << 20):
            assert (store.put("beside", np.full(size, 7, "uint8")).numpy() == 7).all()
        os.write(end[1], b"x")
        os.waitpid(child, 0)
        for descriptor in (*ready, *end):
            os.close(descriptor)


def _work(socket: str, name: str, results: Any) -> None:
    with cotensor.connect(socket) as store:
        tensor = store.get(name)
        array = tensor.numpy()
        store.put(name + "-answer", array * 2)
        results.put((tensor.shape, tensor.dtype, float(array.sum()), array.flags.writeable))


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(daemon: Any, method: str) -> None:
    context = multiprocessing.get_context(method)
    with daemon.connect() as store:
        sent = store.put(f"for-{method}", np.arange(5000, dtype="float32"))
        results = context.Queue()
        child = context.Process(target=_work, args=(str(daemon.socket), f"for-{method}", results))
        child.start()
        assert results.get(timeout=60) == ((5000,), "float32", float(sent.numpy().sum()), False)
        child.join(60)
        assert child.exitcode == 0
        assert np.array_equal(store.get(f"for-{method}-answer").numpy(), sent.numpy() * 2)


def test_leases_are_released_when_the_holder_is_killed(daemon: Any) -> None:
    script = (
        "import sys, numpy as np, cotensor\n"
        "store = cotensor.connect(sys.argv[1])\n"
        "open_resources = store.put('open_resources-by-the-killed', np.zeros(1 << 20), keep=False)\n"
        "print('holding', flush=True)\nsys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(daemon.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"holding\n"
    with daemon.connect() as store:
        kept = store.get("open_resources-by-the-killed")
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert kept.numpy().sum() == 0, "the other lease keeps the tensor"
        kept.release()
        until(lambda: "open_resources-by-the-killed" not in store)
    assert child.stdin is not None
    child.stdin.close()
    child.stdout.close()


def open_resources() -> tuple[int, int]:
    """The numbers of descriptors and mappings of this process."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        return len(os.listdir("/proc/self/fd")), sum(1 for _ in maps)


@pytest.mark.parametrize("size", [16, 100_000, 1 << 20])
def test_thousand_puts_and_gets_leave_no_resources(store: cotensor.Store, size: int) -> None:
    array = np.zeros(size, "uint8")

    def rounds(count: int) -> None:
        for number in range(count):
            tensor = store.put("leak", array, keep=False)
            shown = store.get("leak").numpy()
            window = np.from_dlpack(tensor) if hasattr(np, "from_dlpack") else shown
            assert shown.nbytes == window.nbytes == size
            if number % 4 == 0:
                with store.empty("leak-builder", size, "uint8", keep=False) as builder:
                    builder.numpy()[:1] = 1

    rounds(20)
    before = open_resources()
    rounds(1000 if size < 1 << 20 else 200)
    after = open_resources()
    # The store may keep some more memfds or slabs for reuse.
    assert after[0] <= before[0] + 8 and after[1] <= before[1] + 24, (before, after)


def test_closed_stores_leave_no_resources(daemon: Any) -> None:
    def rounds(count: int) -> None:
        for _ in range(count):
            with daemon.connect() as store:
                store.put("x", np.zeros(1000), keep=False)
            del store
            cotensor.Store().put("x", np.zeros(1000))

    rounds(5)
    before = open_resources()
    rounds(50)
    after = open_resources()
    assert after[0] <= before[0] + 4 and after[1] <= before[1] + 16, (before, after)
