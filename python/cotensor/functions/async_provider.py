"""Provides functions that may be ``async def``.

::

    from cotensor.async_provider import AsyncSharedTensorProvider

    provider = AsyncSharedTensorProvider()

    @provider.share(name="fetch")
    async def fetch(url):
        ...

A client can submit a call of any shared function as a task: see :class:`~cotensor.async_client.AsyncSharedTensorClient`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Callable, Optional

from .._forks import renewed
from ..errors import ConflictError, InvalidError
from . import handlers
from .provider import SharedTensorProvider

#: The default number of worker threads. A running ``async def`` occupies one, which only waits.
WORKERS = 64


class AsyncSharedTensorProvider(SharedTensorProvider):
    """A :class:`~cotensor.provider.SharedTensorProvider` whose functions, and methods of objects, may be ``async def``.

    Coroutines run on an event loop in a thread of the provider, or on ``loop``, which has to run in another thread. At most
    ``workers`` run at a time, by default 64. If a call or task is cancelled, or its caller has disconnected, its coroutine gets
    :class:`asyncio.CancelledError`.
    """

    def __init__(
        self,
        server_port: Optional[int] = None,
        *,
        loop: Optional[asyncio.AbstractEventLoop] = None,
        workers: Optional[int] = None,
        **options: Any,
    ) -> None:
        super().__init__(server_port, workers=WORKERS if workers is None else workers, **options)
        if loop is not None and not isinstance(loop, asyncio.AbstractEventLoop):
            raise InvalidError(f"loop: pass an event loop, not {type(loop).__name__}", field="loop")
        self._loop = loop
        self._loop_given = loop is not None
        self._loop_lock = renewed(self, "_loop_lock", threading.Lock)
        self._loop_process = os.getpid()

    def _handler(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if handlers.is_async(function):
            return handlers.async_handler(name, function, self._running_loop)
        return super()._handler(name, function)

    def _invoker(self) -> Callable[..., Any]:
        return handlers.async_invoke(self._running_loop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._loop.run_forever, name="cotensor-async", daemon=True)
                thread.start()
            if self._loop.is_closed():
                raise ConflictError("the event loop of this provider is closed")
            return self._loop

    async def aserve(self) -> None:
        """Provides the functions until this coroutine is cancelled, then closes."""
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            await asyncio.shield(starting)
            await asyncio.Event().wait()
        finally:
            # Cancelled during `start`: its thread would otherwise provide the functions after `close`.
            await asyncio.wait([starting])
            self.close()

    def close(self) -> None:
        """Withdraws every function and cancels running coroutines."""
        super().close()
        with self._loop_lock:
            loop, self._loop = self._loop, self._loop if self._loop_given else None
        if loop is None or self._loop_given or self._loop_process != os.getpid() or not loop.is_running():
            return

        def end() -> None:
            running = [task for task in asyncio.all_tasks(loop) if not task.done()]
            for task in running:
                task.cancel()
            if running:
                asyncio.ensure_future(asyncio.wait(running)).add_done_callback(lambda _: loop.stop())
            else:
                loop.stop()

        loop.call_soon_threadsafe(end)

    async def __aenter__(self) -> "AsyncSharedTensorProvider":
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


__all__ = ["AsyncSharedTensorProvider"]
