"""Pickled tensors, stores and clients: handles, which other processes of the user open."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from conftest import Daemon, serving  # noqa: E402

import cotensor  # noqa: E402
from cotensor.async_client import AsyncSharedTensorClient  # noqa: E402
from cotensor.client import SharedTensorClient  # noqa: E402

LARGE = 100_000


def describe(sent: Any) -> Any:
    """The properties and bytes of received tensors."""
    tensors = sent if isinstance(sent, list) else [sent]
    return [(each.name, each.version, each.shape, each.strides, each.dtype, each.tobytes()) for each in tensors]


def through(store: cotensor.Store, name: str) -> Any:
    """Uses a received store: returns a tensor of it, the store's client, and a tensor that this process publishes."""
    store.put(f"answer to {name}", np.arange(3))
    return store.get(name), store.client, store.get(f"answer to {name}")


def called(client: Any) -> Any:
    with client:
        return client.call_function("add", [1, 2])


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_tensors_and_stores_are_sent_to_process_pools(daemon: Daemon, method: str) -> None:
    with daemon.connect() as store:
        small, large = store.put("small", np.arange(12).reshape(3, 4)), store.put("large", np.arange(LARGE))
        windows = [small[1:, ::2], small[2], large[5:9], small[:0]]
        with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
            assert pool.submit(describe, small).result() == describe(small)
            assert pool.submit(describe, [large, *windows]).result() == describe([large, *windows])
            got, client, made = pool.submit(through, store, "large").result()
        assert (got.id, client) == (large.id, store.client)
        assert made.name == "answer to large" and made.numpy().tolist() == [0, 1, 2]
        # A superseded version that is still leased here.
        store.put("small", np.zeros(5))
        assert pickle.loads(pickle.dumps(small)).tobytes() == small.tobytes()
        assert pickle.loads(pickle.dumps(store.get("small"))).version == small.version + 1


@pytest.mark.parametrize("kind", [SharedTensorClient, AsyncSharedTensorClient])
def test_clients_keep_their_options(daemon: Daemon, kind: Any) -> None:
    with daemon.connect() as store:
        options = {"timeout": 7.0, "retry_count": 0, "tensors": "numpy", "allow_pickle": True, "name": "sent"}
        for more in ({"socket": daemon.socket}, {"store": store}):
            with kind(server_port=2600, **options, **more) as client:
                assert client.ping()
                with pickle.loads(pickle.dumps(client)) as opened:
                    assert type(opened) is kind and opened.ping()
                    assert opened.store.socket == daemon.socket
                    assert (opened.server_port, opened.timeout, opened.retry_count) == (2600, 7.0, 0)
                    assert opened._values == client._values


def test_sent_client_calls_from_a_process_pool(daemon: Daemon, provider: Any) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        client = SharedTensorClient(socket=daemon.socket, retry_count=0, tensors="numpy")
        assert pool.submit(called, client).result() == 3


def test_handle_holds_no_lease_and_no_secret(daemon: Daemon) -> None:
    with daemon.connect() as store:
        tensor = store.put("not kept", np.arange(LARGE), keep=False)
        handle = pickle.dumps(tensor)
        assert len(handle) < 400 and b"oken" not in handle
        assert pickle.loads(handle).numpy()[7] == 7
        tensor.release()
        del tensor
        gc.collect()
        with pytest.raises(cotensor.NotFoundError, match="not kept.*was freed") as error:
            pickle.loads(handle)
        assert error.value.field == "not kept"
        store.put("removed", np.arange(3)).release()
        handle = pickle.dumps(store.get("removed"))
        store.remove("removed")
        gc.collect()
        with pytest.raises(cotensor.NotFoundError, match="removed"):
            pickle.loads(handle)


def test_handle_is_independent_of_the_current_folder(daemon: Daemon, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(daemon.folder)
    with cotensor.connect("s") as store:
        handles = [pickle.dumps(store.put("from a folder", np.arange(3))), pickle.dumps(store)]
        monkeypatch.chdir(tmp_path)
        assert pickle.loads(handles[0]).numpy().tolist() == [0, 1, 2]
        with pickle.loads(handles[1]) as opened:
            assert "from a folder" in opened


def test_handle_of_another_daemon_raises(daemon: Daemon) -> None:
    with serving() as other, other.connect() as there, daemon.connect() as here:
        names = [there.put(f"x{number}", np.arange(4)) for number in range(3)]
        for number in range(3):
            here.put(f"x{number}", np.zeros(4))
        open_tensor, (_, epoch, name, id, window) = names[0].__reduce__()
        assert epoch == there.epoch != here.epoch
        for wrong in ((epoch, name, id), (epoch, name, (1 << 40, 1)), (here.epoch, "y", here.get("x0").id)):
            with pytest.raises(cotensor.ConflictError, match="another"):
                open_tensor(str(daemon.socket), *wrong, window)
        handle, socket = pickle.dumps(names[0]), pickle.dumps(there)
        folder = other.folder
    # After the daemon's end, another daemon uses the same socket.
    with pytest.raises(cotensor.CotensorError):
        pickle.loads(handle)
    with pytest.raises(cotensor.CotensorError):
        pickle.loads(socket)
    folder.mkdir()
    try:
        again = Daemon(folder)
        with again.connect() as store:
            store.put("x0", np.ones(4))
            with pytest.raises(cotensor.ConflictError, match="another daemon"):
                pickle.loads(handle)
        again.stop()
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def test_local_stores_and_tensors_are_not_pickled(daemon: Daemon) -> None:
    with cotensor.Store() as store:
        tensor = store.put("inside", np.arange(3))
        for each in (store, tensor, tensor[1:]):
            with pytest.raises(cotensor.UnsupportedError, match="connect"):
                pickle.dumps(each)
    tensor.release()
    with pytest.raises(cotensor.ConflictError):
        pickle.dumps(tensor)
    with daemon.connect() as store:
        tensor = store.put("copied", np.arange(3))
        for twin in (copy.copy(tensor), copy.deepcopy(tensor)):
            tensor.release()
            assert twin.numpy().tolist() == [0, 1, 2]
            tensor = twin


def fill(builder: cotensor.TensorBuilder, row: int) -> Any:
    """Fills a row in a worker."""
    rows = builder.numpy()
    rows[row] = row
    with pytest.raises(cotensor.ConflictError, match="the process that made it publishes"):
        builder.publish()
    with pytest.raises(cotensor.ConflictError, match="the process that made it publishes"):
        builder.discard()
    return builder.name, builder.shape, builder.dtype == np.float32, repr(builder)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("size", [8, 1 << 16])
def test_workers_fill_one_builder(daemon: Daemon, method: str, size: int) -> None:
    with daemon.connect() as store, multiprocessing.get_context(method).Pool(2) as pool:
        with store.empty("filled", (6, size), "float32") as builder:
            shown = pool.starmap(fill, [(builder, row) for row in range(6)])
            assert shown[0][:3] == ("filled", (6, size), True) and "of another process" in shown[0][3]
        filled = store["filled"].numpy()
        assert (filled == np.arange(6)[:, None]).all() and filled.shape == (6, size)
        with pytest.raises(cotensor.ConflictError, match="already published"):
            pool.starmap(fill, [(builder, 0)])


kept: Any = None


def keep(builder: cotensor.TensorBuilder) -> None:
    global kept
    kept = builder
    builder.write(np.ones(builder.shape, np.float32))


def write_again(value: float) -> float:
    kept.write(np.full(kept.shape, value, np.float32))
    return float(kept.numpy()[0])


def test_worker_that_keeps_a_builder_does_not_change_the_tensor(daemon: Daemon) -> None:
    with daemon.connect() as store, multiprocessing.get_context("spawn").Pool(1) as pool:
        builder = store.empty("kept", (5000,), "float32")
        pool.apply(keep, (builder,))
        mine = builder.numpy()
        tensor = builder.publish()
        assert pool.apply(write_again, (7.0,)) == 7.0
        assert (mine == 1.0).all(), "nor the arrays of the process that published it"
        assert (tensor.numpy() == 1.0).all() and (store["kept"].numpy() == 1.0).all()
        other = store.empty("other", (5000,), "float32")
        pool.apply(keep, (other,))
        other.discard()
        again = store.empty("again", (5000,), "float32")
        again.numpy()[:] = 2.0
        pool.apply(write_again, (9.0,))
        assert (again.publish().numpy() == 2.0).all(), "memory that a worker can write is not used again"


def start_with(builder: cotensor.TensorBuilder) -> None:
    builder.numpy()[:] = 3.0


def test_process_is_started_with_a_builder(daemon: Daemon) -> None:
    with daemon.connect() as store, store.empty("started", (4,), "float32") as builder:
        process = multiprocessing.get_context("spawn").Process(target=start_with, args=(builder,))
        process.start()
        process.join()
    with daemon.connect() as store:
        assert (store["started"].numpy() == 3.0).all()


def test_builder_that_is_not_sent_to_a_worker_is_an_error(daemon: Daemon) -> None:
    with daemon.connect() as store:
        builder = store.empty("pickled", (4,), "float32")
        pickled = pickle.dumps(builder)
        program = "import pickle, sys; pickle.load(sys.stdin.buffer)"
        ran = subprocess.run([sys.executable, "-c", program], input=pickled, capture_output=True)
        assert ran.returncode == 1 and b"ConflictError" in ran.stderr and b"its own pools" in ran.stderr, ran.stderr


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors by /proc")
def test_handles_of_builders_that_are_not_opened_keep_no_memory(daemon: Daemon) -> None:
    with daemon.connect() as store:
        # The first one starts the thread that answers workers.
        with store.empty("first", (4,), "float32") as builder:
            pickle.dumps(builder)
        before = open_files()
        for _ in range(20):
            builder = store.empty("unopened", (4,), "float32")
            for _ in range(5):
                pickle.dumps(builder)
            builder.discard()
            del builder
        gc.collect()
        assert open_files() <= before


def wait_at(barrier: Any) -> None:
    barrier.wait(30)


def open_and(function: Any, handle: bytes) -> Any:
    return function(pickle.loads(handle))


def put_in(builder: cotensor.TensorBuilder) -> None:
    np.asarray(builder)[:] = 1


@pytest.mark.parametrize("how", ["publish", "discard", "drop"])
@pytest.mark.parametrize("function", [keep, put_in])
def test_worker_gets_a_builder_too_late(daemon: Daemon, how: str, function: Any) -> None:
    """A handle that cannot be opened must not end the worker: the pool would wait for its result for ever."""
    context = multiprocessing.get_context("spawn")
    with daemon.connect() as store, context.Manager() as manager, context.Pool(1) as pool:
        barrier = manager.Barrier(2)
        pool.apply_async(wait_at, (barrier,))
        builder = store.empty("late", (4,), "float32")
        handle = pickle.dumps(builder)
        result = pool.apply_async(open_and, (function, handle))
        if how == "drop":
            del builder
            gc.collect()
        else:
            getattr(builder, how)()
        barrier.wait(30)
        with pytest.raises(cotensor.ConflictError, match=f"^late: .*{how}"):
            result.get(60)


def test_worker_of_a_pool_survives_a_builder_that_came_too_late(daemon: Daemon) -> None:
    context = multiprocessing.get_context("spawn")
    with daemon.connect() as store, context.Manager() as manager, context.Pool(1) as pool:
        barrier = manager.Barrier(2)
        pool.apply_async(wait_at, (barrier,))
        builder = store.empty("late", (4,), "float32")
        result = pool.apply_async(keep, (builder,))
        late = pool.apply_async(os.getpid)
        # The pool pickles its tasks in order, in a thread: those before this one are in the pipe then.
        while pool._taskqueue.qsize():  # type: ignore[attr-defined]
            pass
        builder.publish()
        barrier.wait(30)
        assert late.get(60) != os.getpid()
        with pytest.raises(cotensor.ConflictError, match="late: it is already published"):
            result.get(60)


def test_builder_is_sent_and_opened_while_another_thread_writes_it(daemon: Daemon) -> None:
    with daemon.connect() as store:
        builder = store.empty("written", (1 << 20,), "float32")
        values = np.ones(1 << 20, np.float32)
        done = threading.Event()

        def write() -> None:
            while not done.is_set():
                builder.write(values)
                done.wait(0.01)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            opened = [pickle.loads(pickle.dumps(builder)) for _ in range(50)]
        finally:
            done.set()
            thread.join()
        assert {type(found) for found in opened} == {cotensor.TensorBuilder}
        builder.discard()
