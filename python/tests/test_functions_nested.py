"""Cancellation and deadlines of calls, and of the calls that functions make."""

from __future__ import annotations

import asyncio
from typing import Iterator, List

import pytest
from functions_common import Program, providing, until

from cotensor import ConflictError, TimedOutError
from cotensor.async_client import AsyncSharedTensorClient
from cotensor.client import SharedTensorClient

FUNCTIONS = """
import asyncio
from cotensor.async_client import AsyncSharedTensorClient
from cotensor.async_provider import AsyncSharedTensorProvider

coroutines = AsyncSharedTensorProvider(socket={socket!r}, execution_mode="server")
client = AsyncSharedTensorClient(socket={socket!r}, retry_count=0, timeout=None)
log = []

def call(name, *args):
    return super(AsyncSharedTensorClient, client).call_function(name, args)

@provider.share
def endless(name):
    log.append(f"{{name}} started")
    try:
        while True:
            check_cancelled()
            time.sleep(0.005)
    finally:
        log.append(f"{{name}} ended")

@coroutines.share
async def read_log():
    return list(log)

async def call_async(name):
    return await client.call_function("endless", [name])

@provider.share
def outer(kind):
    try:
        if kind == "call":
            return call("endless", kind)
        if kind == "task":
            return client.get_task_result(client.submit_task("endless", [kind]))
        return asyncio.run(call_async(kind))
    except Exception as error:
        log.append(f"{{kind}} raised {{type(error).__name__}}")
        raise

@coroutines.share
async def async_outer(kind):
    try:
        return await call_async(kind)
    except asyncio.CancelledError:
        log.append(f"{{kind}} raised CancelledError")
        raise

@provider.share
def depth(left):
    return 0 if left == 0 else 1 + call("depth", left - 1)

@provider.share(concurrency="serialized")
def once(left):
    return 0 if left == 0 else 1 + call("once", left - 1)

@provider.share
def time_left(deep):
    return call("time_left", deep - 1) if deep else current_call().time_left
"""


@pytest.fixture(scope="module")
def provider(daemon) -> Iterator[Program]:
    with providing(daemon.socket, FUNCTIONS.format(socket=str(daemon.socket))) as running:
        yield running


@pytest.fixture
def client(daemon, provider) -> Iterator[SharedTensorClient]:
    with SharedTensorClient(socket=daemon.socket, retry_count=0) as opened:
        yield opened


def log_of(client: SharedTensorClient, kind: str) -> List[str]:
    return [line[len(kind) + 1 :] for line in client.call_function("read_log") if line.startswith(kind + " ")]


def test_cancelled_awaits_free_their_workers(daemon, client):
    async def main() -> None:
        async with AsyncSharedTensorClient(socket=daemon.socket, retry_count=0) as calls:
            # Four workers run four of them.
            waits = [asyncio.ensure_future(calls.call_function("endless", ["many"])) for _ in range(8)]
            while log_of(client, "many").count("started") < 4:
                await asyncio.sleep(0.005)
            for wait in waits:
                wait.cancel()
            assert all(isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*waits, return_exceptions=True))
            assert await calls.call_function("depth", [0]) == 0

    asyncio.run(main())
    until(lambda: log_of(client, "many").count("ended") == log_of(client, "many").count("started"))


def test_call_that_was_cancelled_before_it_was_sent_does_not_run(daemon, client):
    async def main() -> None:
        async with AsyncSharedTensorClient(socket=daemon.socket, retry_count=0) as calls:
            for _ in range(20):
                wait = asyncio.ensure_future(calls.call_function("endless", ["early"]))
                await asyncio.sleep(0)
                wait.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await wait
            assert await calls.call_function("depth", [1]) == 1

    asyncio.run(main())
    until(lambda: log_of(client, "early").count("ended") == log_of(client, "early").count("started"))


@pytest.mark.parametrize(
    ("function", "kind"), [("outer", "call"), ("outer", "asyncio"), ("async_outer", "async"), ("outer", "task")]
)
def test_nested_call_is_cancelled_with_its_function(daemon, client, function, kind):
    async def main() -> None:
        async with AsyncSharedTensorClient(socket=daemon.socket, retry_count=0) as calls:
            wait = asyncio.ensure_future(calls.call_function(function, [kind]))
            while "started" not in log_of(client, kind):
                await asyncio.sleep(0.005)
            wait.cancel()
            await asyncio.gather(wait, return_exceptions=True)
            until(lambda: "raised CancelledError" in log_of(client, kind))
            if kind == "task":
                # A task does not belong to the function that submitted it.
                (task,) = calls.list_tasks("running")
                calls.cancel_task(task.task_id)
            until(lambda: "ended" in log_of(client, kind))

    asyncio.run(main())


def test_nested_call_ends_at_the_deadline_of_its_function(client):
    with pytest.raises(TimedOutError):
        client.call_function("outer", ["call"], timeout=0.2)
    until(lambda: log_of(client, "call").count("ended") == log_of(client, "call").count("started"))
    assert client.call_function("time_left", [2], timeout=50) < 50


def test_recursion_is_not_limited_by_the_workers(client):
    assert client.call_function("depth", [100]) == 100
    with pytest.raises(ConflictError, match="once runs once at a time, and its run waits for this call"):
        client.call_function("once", [2])
