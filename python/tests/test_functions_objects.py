"""Remote objects: attributes, async methods, exchange between providers; functions that are shared again."""

from __future__ import annotations

from typing import Iterator

import pytest
from functions_common import Program, providing, until

from cotensor import ConflictError, InvalidError, RemoteError, TimedOutError, UnsupportedError
from cotensor.client import SharedTensorClient
from cotensor.provider import SharedTensorProvider

FUNCTIONS = """
import asyncio
from cotensor.async_provider import AsyncSharedTensorProvider

coroutines = AsyncSharedTensorProvider(socket={socket!r}, execution_mode="server")

class Thing:
    limit = 7
    empty = []
    def __init__(self):
        self.count, self.cancelled, self._private = 0, 0, "private"
    @property
    def double(self):
        return 2 * self.count
    @property
    def caller(self):
        return current_call().function
    @property
    def broken(self):
        raise ValueError("broken")
    @property
    def itself(self):
        return self
    def more(self):
        self.count += 1
        return self.count
    async def more_later(self):
        await asyncio.sleep(0)
        return self.more()
    async def never(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

@provider.share(managed=True)
def plain_thing():
    return Thing()

@coroutines.share(managed=True)
async def thing():
    return Thing()

@provider.share
def count_of(thing):
    return thing.count

@coroutines.share
def counts_of(things):
    return [thing.count for thing in things]
"""


@pytest.fixture(scope="module")
def provider(daemon) -> Iterator[Program]:
    with providing(daemon.socket, FUNCTIONS.format(socket=str(daemon.socket))) as running:
        yield running


@pytest.fixture
def client(daemon, provider) -> Iterator[SharedTensorClient]:
    with SharedTensorClient(socket=daemon.socket, retry_count=0) as opened:
        yield opened


def test_attributes_are_read_and_unknown_names_raise(client):
    thing = client.call_function("thing")
    assert (thing.limit, thing.empty, thing.count, thing.double) == (7, [], 0, 0)
    more = thing.more
    assert (more(), more(), thing.count, thing.double) == (1, 2, 2, 4)
    assert thing.caller == "object.__getattribute__"
    assert thing.itself.count == 2
    assert hasattr(thing, "limit") and not hasattr(thing, "no_such")
    with pytest.raises(AttributeError, match="'Thing' object has no attribute 'no_such'"):
        thing.no_such  # noqa: B018
    with pytest.raises(ValueError, match="broken"):
        thing.broken  # noqa: B018
    with pytest.raises(AttributeError):
        thing._private  # noqa: B018
    with pytest.raises(RemoteError, match="no method"):
        thing.call_method("__getattribute__", ["_private"])
    assert {"limit", "more", "double", "release"} <= set(dir(thing)) and "_private" not in dir(thing)


def test_async_methods_are_awaited_and_cancelled(client):
    thing = client.call_function("thing")
    assert (thing.more_later(), thing.more_later(), thing.count) == (1, 2, 2)
    with pytest.raises(TimedOutError):
        thing.call_method("never", timeout=0.1)
    until(lambda: thing.cancelled == 1)
    plain = client.call_function("plain_thing")
    with pytest.raises(UnsupportedError, match="object.more_later is an async def: share its object with an Async"):
        plain.more_later()
    assert plain.more() == 1


def test_providers_of_one_process_exchange_objects(client):
    thing, plain = client.call_function("thing"), client.call_function("plain_thing")
    plain.more()
    assert client.call_function("count_of", [thing]) == 0 and client.call_function("count_of", [plain]) == 1
    assert client.call_function("counts_of", [[thing, plain]]) == [0, 1]
    plain.release()
    with pytest.raises(ConflictError, match="released"):
        client.call_function("counts_of", [[plain]])


def test_function_that_is_shared_again_replaces_the_one_before(daemon):
    with (
        SharedTensorProvider(socket=daemon.socket, execution_mode="server") as provider,
        SharedTensorClient(socket=daemon.socket, retry_count=0) as client,
    ):

        def cell(result, **options):
            def again():
                """Returns a number."""
                return result

            return provider.share(name="objects.again", **options)(again)

        cell(1, cache=True)
        assert client.call_function("objects.again") == 1
        cell(2, cache=True)
        assert client.call_function("objects.again") == 2, "the result of the first is not kept"
        cell(3, execution="task")
        (found,) = client.list_functions("objects.again")
        assert found["task"] and client.call_function("objects.again") == 3
        with pytest.raises(ConflictError, match=r"already provides 'objects.again', another function: remove\("):
            provider.share(name="objects.again")(lambda: 4)
        with pytest.raises(InvalidError, match="async def"):

            async def again():
                return 5

            again.__qualname__ = cell(3).__qualname__
            provider.share(name="objects.again")(again)
        assert client.call_function("objects.again") == 3
        provider.remove("objects.again")
        provider.share(name="objects.again")(lambda: 4)
        assert client.call_function("objects.again") == 4
