"""The functions that the tests of asynchronous clients call."""

from __future__ import annotations

import asyncio

FUNCTIONS = """
import asyncio
from cotensor.async_provider import AsyncSharedTensorProvider

coroutines = AsyncSharedTensorProvider(socket={socket!r}, execution_mode="server")
gate = threading.Event()
state = {{"cancelled": 0, "most": 0, "now": 0}}

@provider.share
def double(x):
    return x * 2

@provider.share
def gated(x):
    gate.wait(60)
    return x

@provider.share
def shut_gate():
    gate.clear()

@provider.share
def fail(message):
    raise ValueError(message)

@provider.share
def until_cancelled():
    while True:
        check_cancelled()
        time.sleep(0.005)

@provider.share(execution="task")
def as_task(x):
    return x + 1

@coroutines.share
async def open_gate_beside():
    gate.set()

@coroutines.share
async def slow_double(x, *, pause=0.0):
    state["now"] += 1
    state["most"] = max(state["most"], state["now"])
    await asyncio.sleep(pause)
    state["now"] -= 1
    return x * 2

@coroutines.share
async def join(count):
    state["now"] += 1
    while state["now"] < count:
        await asyncio.sleep(0.001)
    return threading.current_thread().name

@coroutines.share
async def never():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        state["cancelled"] += 1
        raise

@coroutines.share
async def async_fail():
    raise LookupError("async")

@coroutines.share
async def end_it():
    raise SystemExit(3)

class Callable:
    async def __call__(self, x):
        return x + 1

coroutines.share(name="async_object")(Callable())

@coroutines.share
def read_state(name):
    return state[name]

@coroutines.share
async def current_name():
    await asyncio.sleep(0)
    return current_call().function
"""


async def wait_until_sent(client, count):
    """Waits until the client has sent `count` calls and waits to providers."""
    while sum(waiter.queue.count for waiter in client._waiters.values()) < count:
        await asyncio.sleep(0.001)
