"""Calls functions of other processes from asyncio, and as tasks.

::

    from cotensor.async_client import AsyncSharedTensorClient

    async with AsyncSharedTensorClient() as client:
        y = await client.call_function("scale", [x, 2])
        many = await asyncio.gather(*(client.call_function("scale", [x, k]) for k in range(1000)))

A *task* is a call that runs without a waiting client. The methods for tasks, which every client has, block; each has an asyncio
variant with an ``a`` before its name.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

from .. import _checks, _native
from .._forks import renewed
from .._waiter import Waiter
from ..errors import ConflictError, NoDaemonError, NotFoundError, TimedOutError
from .client import SharedTensorClient
from .retries import not_called
from .task_status import TaskStatus, parts

T = TypeVar("T")
_Send = Callable[[_native.CompletionQueue, int], None]

#: Threads that send calls. Sending copies arguments into shared memory, which must not block the event loop.
SENDERS = 4


class AsyncSharedTensorClient(SharedTensorClient):
    """A :class:`~cotensor.client.SharedTensorClient` for asyncio: ``await client.call_function(…)``.

    A waiting call occupies no thread, neither in this process nor in the provider's, so ten thousand calls can wait. If an
    ``await`` is cancelled, the call is cancelled at its provider: it does not start, or its function gets a request to stop. A
    task continues after a cancelled ``await``; :meth:`acancel_task` cancels it.
    """

    def __init__(self, server_port: Optional[int] = None, timeout: Optional[float] = 30, **options: Any) -> None:
        super().__init__(server_port, timeout, **options)
        # A forked child has none of its parent's threads.
        self._waiters: Dict[int, Waiter[_native.CompletionQueue]] = renewed(self, "_waiters", dict)
        self._waiters_lock = renewed(self, "_waiters_lock", threading.Lock)
        self._senders: Optional[concurrent.futures.ThreadPoolExecutor] = renewed(self, "_senders", lambda: None)

    # -- asyncio -----------------------------------------

    def _waiter(self, queue: _native.CompletionQueue) -> Waiter[_native.CompletionQueue]:
        with self._waiters_lock:
            found = self._waiters.get(queue.epoch)
            if found is None:
                # Those of providers that have ended keep a connection and its memory.
                for epoch, other in list(self._waiters.items()):
                    if other.queue.closed and not other.queue.count:
                        del self._waiters[epoch]
                found = self._waiters[queue.epoch] = Waiter(queue)
            return found

    async def _awaited(self, prepare: Callable[[], Tuple[_native.CompletionQueue, _Send]]) -> Any:
        """Sends a call or a wait, which ``prepare`` returns with its queue, and awaits its outcome. Both run in a thread. If the
        ``await`` is cancelled, so is the call or the wait."""
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[Any]" = loop.create_future()
        used: "List[Waiter[_native.CompletionQueue]]" = []

        def start() -> None:
            queue, send = prepare()
            waiter = self._waiter(queue)
            used.append(waiter)
            try:
                waiter.start(loop, future, send)
            except OSError:
                # The connection broke. A later call gets a new one.
                with self._waiters_lock:
                    if self._waiters.get(queue.epoch) is waiter:
                        del self._waiters[queue.epoch]
                raise

        try:
            await self._in_thread(start)
            return await future
        except asyncio.CancelledError:
            # Before `used` is read: `start` reads it after it has added its waiter.
            future.cancel()
            senders = self._senders
            if used and senders is not None:
                # In a thread: sending may wait for the provider.
                with contextlib.suppress(RuntimeError):  # closed meanwhile, which ends the call as well
                    senders.submit(used[0].cancel, future)
            raise
        finally:
            # The traceback of an error refers to this frame, which would keep the connection until the next garbage collection.
            used.clear()

    async def _in_thread(self, act: Callable[[], T]) -> T:
        with self._waiters_lock:
            if self._closed:
                raise ConflictError("this client is closed")
            if self._senders is None:
                self._senders = concurrent.futures.ThreadPoolExecutor(SENDERS, "cotensor-sender")
            senders = self._senders
        # With the current call, whose limits apply to the calls that it makes.
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(senders, lambda: context.run(act))

    async def call_function(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        *,
        timeout: Optional[float] = None,
        wait: Optional[float] = None,
    ) -> Any:
        """As :meth:`SharedTensorClient.call_function <cotensor.client.SharedTensorClient.call_function>`, for ``await``."""
        args, named = _checks.arguments(name, args, kwargs)
        retries = self._retries(timeout, wait)

        def call() -> Tuple[_native.CompletionQueue, _Send]:
            queue = self._functions().completion_queue(name)
            return queue, lambda queue, number: queue.call(number, name, args, named, timeout=retries.time_left())

        while True:
            try:
                return await self._awaited(call)
            except (NotFoundError, NoDaemonError) as error:
                if not not_called(error):
                    raise
                final = await self._in_thread(functools.partial(self._misspelt, name, error, retries))
                if final is not None:
                    raise final from None
                pause = retries.next_pause(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def acall_function(
        self, name: str, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, **options: Any
    ) -> Any:
        """An alias of :meth:`call_function`."""
        return await self.call_function(name, args, kwargs, **options)

    async def alist_functions(self, prefix: str = "") -> List[Dict[str, Any]]:
        """As :meth:`list_functions`, for ``await``."""
        return await self._in_thread(lambda: self.list_functions(prefix))

    async def aping(self) -> bool:
        """As :meth:`ping`, for ``await``."""
        return await self._in_thread(self.ping)

    # -- tasks -----------------------------------------

    async def asubmit_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        *,
        timeout: Optional[float] = None,
    ) -> str:
        """As :meth:`submit_task`, for ``await``."""
        return await self._in_thread(lambda: self.submit_task(name, args, kwargs, timeout=timeout))

    async def aget_task_status(self, task_id: str) -> TaskStatus:
        """As :meth:`get_task_status`, for ``await``."""
        return await self._in_thread(lambda: self.get_task_status(task_id))

    async def await_for_task(self, task_id: str, timeout: Optional[float] = None) -> TaskStatus:
        """As :meth:`wait_for_task`, for ``await``."""

        def wait() -> Tuple[_native.CompletionQueue, _Send]:
            found = self._task(task_id)
            queue = self._functions().completion_queue_of(found)
            return queue, lambda queue, number: queue.add_task(number, found, timeout=timeout)

        info = await self._awaited(wait)
        return TaskStatus.of(parts(task_id)[0], info)

    async def aget_task_result(self, task_id: str, timeout: Optional[float] = None) -> Any:
        """As :meth:`get_task_result`, for ``await``."""
        status = await self.await_for_task(task_id, timeout)
        if not status.ended:
            raise TimedOutError(f"task {task_id} is {status} after {timeout} s", field="timeout")
        return await self._in_thread(lambda: self._task(task_id).result())

    async def acancel_task(self, task_id: str) -> TaskStatus:
        """As :meth:`cancel_task`, for ``await``."""
        return await self._in_thread(lambda: self.cancel_task(task_id))

    async def alist_tasks(self, state: Optional[str] = None) -> List[TaskStatus]:
        """As :meth:`list_tasks`, for ``await``."""
        return await self._in_thread(lambda: self.list_tasks(state))

    # -- closing -----------------------------------------

    def close(self) -> None:
        """As :meth:`SharedTensorClient.close <cotensor.client.SharedTensorClient.close>`. Waiting calls fail."""
        try:
            super().close()
        finally:
            with self._waiters_lock:
                senders, self._senders = self._senders, None
                waiters = list(self._waiters.values())
                self._waiters.clear()
            for waiter in waiters:
                waiter.fail(ConflictError("this client is closed"))
            if senders is not None:
                senders.shutdown(wait=False)

    async def __aenter__(self) -> "AsyncSharedTensorClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


__all__ = ["AsyncSharedTensorClient", "TaskStatus"]
