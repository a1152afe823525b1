"""A store for asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any, Awaitable, Callable

import pytest

np = pytest.importorskip("numpy")

from conftest import Daemon, serving  # noqa: E402

import cotensor  # noqa: E402
from cotensor.aio import AsyncStore  # noqa: E402


@pytest.fixture(params=["local", "daemon"])
def opened(request: pytest.FixtureRequest) -> Callable[[], Awaitable[AsyncStore]]:
    """Opens a store of each kind."""

    async def open_store() -> AsyncStore:
        if request.param == "local":
            return AsyncStore(cotensor.Store())
        daemon: Daemon = request.getfixturevalue("daemon")
        return await cotensor.connect_async(daemon.socket)

    return open_store


def test_tensors_are_put_and_found(opened: Any) -> None:
    async def program() -> None:
        async with await opened() as store:
            tensor = await store.put("x", np.arange(3), metadata={"step": 1})
            assert (await store.get("x")).id == tensor.id == (await store.lease(tensor.id)).id
            assert (await store.get("x")).metadata == {"step": 1}
            await store.put_many({"a": [1], "b": [2]})
            await store.put_group("g", {"codes": [1]})
            assert list(await store.get_many(["b", "a", "none"], missing_ok=True)) == ["b", "a"]
            assert await store.names("g") == ["g"] and await store.contains("x")
            for name in ("x", "a", "b", "g"):
                await store.remove(name)
            await store.remove("x", missing_ok=True)
            with pytest.raises(KeyError):
                await store.get("x")
            assert not await store.contains("x")

    asyncio.run(program())


def test_many_waits_have_one_thread(opened: Any) -> None:
    async def program() -> None:
        async with await opened() as store:
            before = {thread.name for thread in threading.enumerate()}
            waits = [asyncio.ensure_future(store.wait(f"wait {number}", timeout=60)) for number in range(100)]
            while store._waiter is None or len(store._waiter._waiting) < 100:
                await asyncio.sleep(0.001)
            new = [thread.name for thread in threading.enumerate() if thread.name not in before]
            assert [name for name in new if not name.startswith("asyncio_")] == ["cotensor-waiter"]
            for number in reversed(range(100)):
                await store.put(f"wait {number}", [number])
            found = await asyncio.gather(*waits)
            assert [tensor.numpy().tolist() for tensor in found] == [[number] for number in range(100)]
            later = asyncio.ensure_future(store.wait("wait 0", after=found[0]))
            await store.put("wait 0", [-1])
            assert (await later).version == 2
            for number in range(100):
                await store.remove(f"wait {number}")

    asyncio.run(program())


def test_waits_time_out_and_are_cancelled(opened: Any) -> None:
    async def program() -> None:
        async with await opened() as store:
            for timeout in (0, 0.01):
                with pytest.raises(TimeoutError):
                    await store.wait("never", timeout=timeout)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(store.wait("never"), 0.05)
            queue = store._waiter.queue
            assert queue.count == 0, "a cancelled wait is removed"
            with pytest.raises(cotensor.InvalidError, match="timeout"):
                await store.wait("never", timeout="soon")
            waiting = asyncio.ensure_future(store.wait("never"))
            while queue.count == 0:
                await asyncio.sleep(0.001)
        with pytest.raises(cotensor.ConflictError, match="closed"):
            await waiting

    asyncio.run(program())


def test_watch_reports_versions_and_removals(opened: Any) -> None:
    async def program() -> None:
        async with await opened() as store:
            await store.put("w.old", [1])
            async with store.watch("w.", existing=True) as changes:
                assert (await changes.get(60)).name == "w.old"
                with pytest.raises(TimeoutError):
                    await changes.get(0)
                seen = []

                async def read() -> None:
                    async for change in changes:
                        seen.append((change.name, change.version))
                        if change.removed:
                            return

                reading = asyncio.ensure_future(read())
                await store.put("w.x", [1])
                while not seen:
                    await asyncio.sleep(0.001)
                await store.remove("w.x")
                await asyncio.wait_for(reading, 60)
                assert seen == [("w.x", 1), ("w.x", None)]
            with pytest.raises(StopAsyncIteration):
                await changes.__anext__()
            await store.remove("w.old")

    asyncio.run(program())


def test_watch_is_read_while_a_thread_has_its_lock(opened: Any) -> None:
    """The thread of the waits has the lock while it applies an answer to a cancelled wait. Here, a thread that reads has it."""

    def read(watch: cotensor.Watch) -> cotensor.NameChange:
        while True:
            try:
                return watch.get(60)
            except cotensor.ConflictError:
                pass  # the test looks whether this thread reads

    def is_read(watch: cotensor.Watch) -> bool:
        try:
            watch.get(0)
        except cotensor.ConflictError:
            return True
        except TimeoutError:
            return False
        raise AssertionError("nothing has changed")

    async def program() -> None:
        async with await opened() as store, store.watch("busy.") as changes:
            watch = changes._watch
            reading = asyncio.ensure_future(asyncio.to_thread(read, watch))
            while not is_read(watch):
                await asyncio.sleep(0.001)
            waiting = asyncio.ensure_future(changes.get(60))
            for _ in range(3):
                await asyncio.sleep(0)
            for name, reader in (("busy.1", reading), ("busy.2", waiting)):
                await store.put(name, [1])
                assert (await reader).name == name
            for name in ("busy.1", "busy.2"):
                await store.remove(name)

    asyncio.run(program())


def test_waits_go_on_with_the_next_server() -> None:
    async def program(daemon: Daemon) -> None:
        async with cotensor.connect_async(daemon.socket) as store, cotensor.connect_async(daemon.socket) as writer:
            waits = [asyncio.ensure_future(store.wait(name, timeout=60)) for name in ("x", "y")]
            while store._waiter is None or len(store._waiter._waiting) < 2:
                await asyncio.sleep(0.001)
            os.kill(daemon.info["server"], signal.SIGKILL)
            await writer.put_many({"x": [1], "y": [2]})
            assert [tensor.numpy().tolist() for tensor in await asyncio.gather(*waits)] == [[1], [2]]

    with serving() as daemon:
        asyncio.run(program(daemon))


def test_end_of_the_daemon_ends_the_waits() -> None:
    async def program(daemon: Daemon) -> None:
        async with cotensor.connect_async(daemon.socket, autostart=False) as store:
            waiting = asyncio.ensure_future(store.wait("x"))
            while store._waiter is None or not store._waiter._waiting:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(daemon.stop)
            with pytest.raises((cotensor.NoDaemonError, cotensor.IoError)):
                await waiting

    with serving() as daemon:
        asyncio.run(program(daemon))
