"""The asyncio client and provider, and tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
from typing import Iterator

import numpy as np
import pytest
from async_common import FUNCTIONS, wait_until_sent
from functions_common import Program, program, providing, until

from cotensor import ConflictError, InvalidError, IoError, NotFoundError, TimedOutError, errors
from cotensor._waiter import Waiter
from cotensor.async_client import AsyncSharedTensorClient
from cotensor.async_provider import AsyncSharedTensorProvider
from cotensor.client import SharedTensorClient
from cotensor.functions.task_status import TaskStatus


@pytest.fixture(scope="module")
def provider(daemon) -> Iterator[Program]:
    with providing(daemon.socket, FUNCTIONS.format(socket=str(daemon.socket)), "task_ttl=600") as running:
        yield running


@pytest.fixture
def client(daemon, provider) -> Iterator[AsyncSharedTensorClient]:
    with AsyncSharedTensorClient(socket=daemon.socket, retry_count=0, tensors="numpy") as opened:
        yield opened


# -- tasks as plain calls ----------------------------------------------


def test_task_result_is_returned_repeatedly(client):
    task = client.submit_task("double", [np.arange(5)])
    assert isinstance(task, str)
    status = client.wait_for_task(task)
    assert status == "completed" and status.ended and status.function == "double" and status.task_id == task
    assert str(status) == "completed" and "double" in repr(status) and status.error is None
    for _ in range(2):
        assert np.array_equal(client.get_task_result(task), np.arange(5) * 2)


def test_task_states(client):
    task = client.submit_task("gated", [1])
    until(lambda: client.get_task_status(task) == "running")
    assert client.wait_for_task(task, timeout=0.01) == "running"
    with pytest.raises(TimedOutError, match="running"):
        client.get_task_result(task, timeout=0.01)
    client.submit_task("open_gate_beside")
    assert client.get_task_result(task) == 1
    client.get_task_result(client.submit_task("shut_gate"))


def test_failed_and_cancelled_tasks(client):
    failed = client.submit_task("fail", ["why"])
    assert client.wait_for_task(failed) == "failed"
    assert "why" in (client.get_task_status(failed).error or "")
    with pytest.raises(ValueError, match="why") as raised:
        client.get_task_result(failed)
    assert "in fail" in raised.value.remote_traceback
    cancelled = client.submit_task("until_cancelled")
    until(lambda: client.get_task_status(cancelled) == "running")
    assert client.cancel_task(cancelled) == "cancelled"
    with pytest.raises(errors.CancelledError):
        client.get_task_result(cancelled)
    assert client.cancel_task(failed) == "failed", "the state of an ended task does not change"
    limited = client.submit_task("until_cancelled", timeout=0.05)
    assert client.wait_for_task(limited) == "failed"
    with pytest.raises(TimedOutError):
        client.get_task_result(limited)


def test_any_client_finds_a_task(daemon, client):
    task = client.submit_task("double", [4])
    with AsyncSharedTensorClient(socket=daemon.socket) as other:
        assert other.get_task_result(task) == 8
        assert task in [status.task_id for status in other.list_tasks()]
        assert all(status == "completed" for status in other.list_tasks("completed"))


def test_calls_of_task_functions_are_tasks(daemon, client):
    with SharedTensorClient(socket=daemon.socket) as plain:
        assert plain.call_function("as_task", [1]) == 2
    assert "as_task" in [status.function for status in client.list_tasks("completed")]


def test_wrong_ids_and_states(client):
    for wrong in ("", "x", "1-2-3", "zz-1", "1-x", 5, None):
        with pytest.raises(InvalidError, match="task_id"):
            client.get_task_status(wrong)
    epoch = client.submit_task("double", [1]).split("-")[0]
    with pytest.raises(NotFoundError, match="does not exist"):
        client.get_task_status(f"{epoch}-999999")
    with pytest.raises(NotFoundError, match="has ended"):
        client.get_task_result("123abc-1")
    with pytest.raises(InvalidError, match="state"):
        client.list_tasks("done")
    with pytest.raises(NotFoundError):
        client.submit_task("nonexistent")


def test_status_equals_its_text():
    status = TaskStatus.of(
        0xAB, {"task": 3, "function": "f", "state": "failed", "client": "c", "age_ms": 1500, "error": "e"}
    )
    assert status == "failed" and status.task_id == "ab-3" and status.age_seconds == 1.5 and status.error == "e"


# -- asyncio -----------------------------------------------------------


def test_calls_are_awaited(daemon, provider):
    async def main():
        async with AsyncSharedTensorClient(socket=daemon.socket, retry_count=0, tensors="numpy") as client:
            assert await client.call_function("double", [2]) == 4
            assert await client.double(3) == 6 and await client.functions.double(x=4) == 8
            assert await client.acall_function("double", kwargs={"x": 5}) == 10
            x = np.arange(10, dtype=np.float32)
            assert np.array_equal(await client.call_function("double", [x]), x * 2)
            with pytest.raises(ValueError, match="why"):
                await client.call_function("fail", ["why"])
            with pytest.raises(NotFoundError):
                await client.call_function("nonexistent")
            with pytest.raises(InvalidError, match="64 bits"):
                await client.call_function("double", [1 << 70])
            with pytest.raises(TimedOutError):
                await client.call_function("until_cancelled", timeout=0.05)
            assert await client.aping()
            assert "double" in [each["name"] for each in await client.alist_functions()]
        with pytest.raises(ConflictError, match="closed"):
            await client.call_function("double", [2])

    asyncio.run(main())


def test_waiting_calls_keep_their_arguments(daemon, provider):
    async def main():
        async with AsyncSharedTensorClient(socket=daemon.socket, retry_count=0, tensors="numpy") as client:
            # Only the calls hold the arrays while they wait for a worker.
            made = [client.call_function("double", [np.full(1000, k)]) for k in range(500)]
            for k, result in enumerate(await asyncio.gather(*made)):
                assert np.array_equal(result, np.full(1000, 2 * k))

    asyncio.run(main())


def test_loop_runs_while_calls_wait(daemon, provider):
    async def main():
        async with AsyncSharedTensorClient(socket=daemon.socket) as client:
            waiting = asyncio.ensure_future(client.call_function("gated", [7]))
            assert await client.call_function("double", [3]) == 6
            assert not waiting.done()
            await client.call_function("open_gate_beside")
            assert await waiting == 7
            await client.call_function("shut_gate")

    asyncio.run(main())


def test_thousand_calls_wait_without_threads(daemon, provider):
    async def main():
        async with AsyncSharedTensorClient(socket=daemon.socket, timeout=None) as client:
            calls = [asyncio.ensure_future(client.call_function("gated", [k])) for k in range(1000)]
            await wait_until_sent(client, 1000)
            assert threading.active_count() < 30
            # All workers wait for the gate, so a function of the other provider must open it.
            await client.call_function("open_gate_beside")
            assert await asyncio.gather(*calls) == list(range(1000))
            await client.call_function("shut_gate")

    asyncio.run(main())


def test_few_threads_wait_for_ten_thousand_tasks(daemon, provider):
    async def main():
        async with AsyncSharedTensorClient(socket=daemon.socket, timeout=None) as client:
            await client.call_function("open_gate_beside")
            tasks = await asyncio.gather(*(client.asubmit_task("double", [k]) for k in range(10_000)))
            assert len(set(tasks)) == 10_000
            waits = [asyncio.ensure_future(client.await_for_task(task)) for task in tasks]
            await asyncio.sleep(0)
            assert threading.active_count() < 30
            assert set(await asyncio.gather(*waits)) == {"completed"}
            assert threading.active_count() < 30
            results = await asyncio.gather(*(client.aget_task_result(task) for task in tasks[::100]))
            assert results == [k * 2 for k in range(0, 10_000, 100)]
            await client.call_function("shut_gate")

    asyncio.run(main())


def test_tasks_are_awaited(daemon, provider):
    async def main():
        async with AsyncSharedTensorClient(socket=daemon.socket) as client:
            task = await client.asubmit_task("gated", [1])
            assert await client.await_for_task(task, timeout=0.02) in ("pending", "running")
            with pytest.raises(TimedOutError):
                await client.aget_task_result(task, timeout=0.02)
            assert await client.aget_task_status(task) == "running"
            await client.call_function("open_gate_beside")
            assert await client.aget_task_result(task) == 1
            assert task in [status.task_id for status in await client.alist_tasks("completed")]
            await client.call_function("shut_gate")
            stuck = await client.asubmit_task("until_cancelled")
            assert await client.acancel_task(stuck) == "cancelled"
            with pytest.raises(errors.CancelledError):
                await client.aget_task_result(stuck)

    asyncio.run(main())


def test_client_is_usable_after_a_cancelled_await(daemon, provider):
    async def main():
        async with AsyncSharedTensorClient(socket=daemon.socket) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.call_function("gated", [1]), 0.05)
            assert await client.call_function("double", [1]) == 2
            await client.call_function("open_gate_beside")
            assert await client.call_function("double", [2]) == 4
            await client.call_function("shut_gate")

    asyncio.run(main())


def test_client_is_usable_in_several_loops(daemon, provider):
    client = AsyncSharedTensorClient(socket=daemon.socket)
    for k in range(3):
        assert asyncio.run(client.call_function("double", [k])) == 2 * k
    client.close()


def test_waiting_calls_fail_when_the_provider_ends(daemon):
    code = f"""
import time
from cotensor.provider import SharedTensorProvider
provider = SharedTensorProvider(socket={str(daemon.socket)!r}, execution_mode="server", workers=2)
@provider.share(name="ending.wait")
def wait():
    time.sleep(1000)
print("ready", flush=True)
provider.serve()
"""

    async def main():
        with program(code) as ending:
            assert ending.line() == "ready"
            async with AsyncSharedTensorClient(socket=daemon.socket, retry_count=0, tensors="numpy") as client:
                task = await client.asubmit_task("ending.wait")
                waits = [asyncio.ensure_future(client.call_function("ending.wait")) for _ in range(5)]
                waits.append(asyncio.ensure_future(client.await_for_task(task)))
                while await client.aget_task_status(task) != "running":
                    await asyncio.sleep(0.005)
                await wait_until_sent(client, len(waits))
                ending.signal(signal.SIGKILL)
                for outcome in await asyncio.gather(*waits, return_exceptions=True):
                    assert isinstance(outcome, IoError), outcome
                # The daemon may notice the end later than the client.
                until(lambda: not client.has_function("ending.wait"))
                with pytest.raises(NotFoundError):
                    await client.call_function("ending.wait")

    asyncio.run(main())


def test_ended_providers_keep_no_connection(daemon):
    async def main():
        async with AsyncSharedTensorClient(socket=daemon.socket, wait=60) as client:
            counts = []
            for _ in range(4):
                with providing(daemon.socket, "@provider.share(name='ending.sleep')\ndef wait():\n    time.sleep(600)") as ending:
                    waiting = asyncio.ensure_future(client.call_function("ending.sleep"))
                    await wait_until_sent(client, 1)
                    counts.append(len(os.listdir("/proc/self/fd")))
                    ending.end()
                    with pytest.raises(IoError):
                        await waiting
            assert counts[3] == counts[2] == counts[1]

    asyncio.run(main())


# -- async functions ---------------------------------------------------


def test_coroutines_run_concurrently_on_one_loop(daemon, provider):
    async def main():
        async with AsyncSharedTensorClient(socket=daemon.socket) as client:
            assert await client.call_function("slow_double", [4]) == 8
            assert await client.call_function("current_name") == "current_name"
            # Each call returns only when all twenty run.
            names = await asyncio.gather(*(client.call_function("join", [20]) for _ in range(20)))
            assert set(names) == {"cotensor-async"}
            with pytest.raises(LookupError, match="async"):
                await client.call_function("async_fail")
            # SystemExit in a coroutine does not end the loop.
            with pytest.raises(RuntimeError, match="SystemExit: 3"):
                await client.call_function("end_it")
            assert await client.call_function("async_object", [1]) == 2
            with pytest.raises(TypeError, match=r"slow_double\(x, \*, pause=0.0\): unknown argument 'y'"):
                await client.call_function("slow_double", [1], {"y": 1})

    asyncio.run(main())


def test_coroutine_is_cancelled_with_its_call(client):
    before = client.get_task_result(client.submit_task("read_state", ["cancelled"]))
    task = client.submit_task("never")
    until(lambda: client.get_task_status(task) == "running")
    client.cancel_task(task)
    until(lambda: client.get_task_result(client.submit_task("read_state", ["cancelled"])) == before + 1)


def test_waiting_call_fails_when_its_client_is_closed(daemon, provider):
    async def main():
        client = AsyncSharedTensorClient(socket=daemon.socket)
        waiting = asyncio.ensure_future(client.call_function("never"))
        await wait_until_sent(client, 1)
        client.close()
        with pytest.raises(ConflictError, match="closed"):
            await asyncio.wait_for(waiting, 60)

    asyncio.run(main())


def test_result_that_arrives_when_a_check_begins_is_returned(daemon, monkeypatch):
    result = concurrent.futures.Future.result

    def late(self, timeout=None):
        """Ends without the result, which arrives before the caller's next step."""
        if timeout is None:
            return result(self)
        concurrent.futures.wait([self])
        raise concurrent.futures.TimeoutError

    with AsyncSharedTensorProvider(socket=daemon.socket, execution_mode="server") as provider:

        @provider.share(name="late.double")
        async def double(x):
            return 2 * x

        @provider.share(name="late.fail")
        async def fail():
            raise TimeoutError("of the function")

        with SharedTensorClient(socket=daemon.socket) as client, monkeypatch.context() as patched:
            patched.setattr(concurrent.futures.Future, "result", late)
            assert client.call_function("late.double", [2]) == 4
            with pytest.raises(TimeoutError, match="of the function"):
                client.call_function("late.fail")


def test_wrong_options_of_async_providers_are_named():
    for options, field in (({"workers": 0}, "workers"), ({"workers": 10**9}, "workers"), ({"loop": 5}, "loop")):
        with pytest.raises(InvalidError) as raised:
            AsyncSharedTensorProvider(**options)
        assert raised.value.field == field


def test_coroutines_need_an_async_provider(daemon):
    from cotensor.provider import SharedTensorProvider

    async def coroutine():
        return 1

    with (
        SharedTensorProvider(socket=daemon.socket) as plain,
        pytest.raises(InvalidError, match="AsyncSharedTensorProvider"),
    ):
        plain.share(coroutine)
    with AsyncSharedTensorProvider(socket=daemon.socket) as here, SharedTensorClient(socket=daemon.socket) as client:
        assert here.share(name="here.coroutine")(coroutine) is coroutine
        assert client.call_function("here.coroutine") == 1

        class Called:
            async def __call__(self):
                return 1

        # A call of the class creates an object and is not a coroutine, although the object's calls are.
        here.share(name="here.made", managed=True)(Called)
        client.call_function("here.made").release()
        assert asyncio.run(coroutine()) == 1
    with pytest.raises(NotFoundError), SharedTensorClient(socket=daemon.socket, retry_count=0) as client:
        client.call_function("here.coroutine")


def test_async_provider_serves_in_a_loop(daemon):
    async def main():
        provider = AsyncSharedTensorProvider(socket=daemon.socket)

        @provider.share(name="here.aserve")
        async def function():
            return 5

        serving = asyncio.ensure_future(provider.aserve())
        async with AsyncSharedTensorClient(socket=daemon.socket, retry_count=5) as client:
            assert await client.call_function("here.aserve") == 5
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert not provider.running

    asyncio.run(main())


def test_async_provider_cancelled_during_start_provides_nothing(daemon, monkeypatch):
    starting, go_on = threading.Event(), threading.Event()
    start = AsyncSharedTensorProvider.start

    def slowly(self):
        starting.set()
        assert go_on.wait(60)
        start(self)

    monkeypatch.setattr(AsyncSharedTensorProvider, "start", slowly)

    async def main():
        provider = AsyncSharedTensorProvider(socket=daemon.socket)
        provider.share(name="here.cancelled")(lambda: 5)
        serving = asyncio.ensure_future(provider.aserve())
        await asyncio.get_running_loop().run_in_executor(None, starting.wait)
        serving.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert not provider.running

    asyncio.run(main())


def test_failed_wait_fails_all_futures_and_the_next_wait_works():
    class Fake:
        fail = True
        sent: list = []

        def wait(self, seconds):
            if Fake.fail:
                raise RuntimeError("the connection broke")
            done, Fake.sent = [(number, number, False) for number in Fake.sent], []
            return done

    def send(queue, number):
        queue.sent.append(number)

    async def run():
        loop = asyncio.get_running_loop()
        waiter = Waiter(Fake())
        lost = loop.create_future()
        waiter.start(loop, lost, send)
        with pytest.raises(RuntimeError, match="the connection broke"):
            await asyncio.wait_for(lost, 10)
        Fake.fail, Fake.sent = False, []

        def send_again(queue, number):
            Fake.sent.append(number)

        answered = loop.create_future()
        waiter.start(loop, answered, send_again)
        assert await asyncio.wait_for(answered, 10) == 2

    asyncio.run(run())
