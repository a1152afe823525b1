"""Calling functions of other processes from asyncio, and as tasks.

::

    from cotensor.async_client import AsyncSharedTensorClient

    async with AsyncSharedTensorClient() as client:
        y = await client.call_function("scale", [x, 2])
        many = await asyncio.gather(*(client.call_function("scale", [x, k]) for k in range(1000)))

A *task* is a call that is asked about later, by any client: :meth:`AsyncSharedTensorClient.submit_task` gives its id.
The methods for tasks are plain calls; each has a variant for asyncio, with an ``a`` before its name.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar

from .. import _checks, _native
from ..errors import ConflictError, NoDaemonError, NotFoundError, TimedOutError
from .client import PAUSE, SharedTensorClient, arguments, not_called
from .task_status import ENDED, STATES, TaskStatus, parts, task_id
from .waiter import Waiter

T = TypeVar("T")

#: Threads that send calls: what is sent is put into shared memory first, and a loop is not to wait for that.
SENDERS = 4


class AsyncSharedTensorClient(SharedTensorClient):
    """As :class:`~cotensor.client.SharedTensorClient`, for asyncio: ``await client.call_function(…)``.

    A call that waits occupies no thread, neither here nor of the provider's: ten thousand may wait at a time. A call
    whose ``await`` is cancelled goes on at its provider, and its result is dropped; a task can be cancelled there, too.
    """

    def __init__(self, server_port: Optional[int] = None, timeout: Optional[float] = 30, **options: Any) -> None:
        super().__init__(server_port, timeout, **options)
        self._fresh()

    def _fresh(self) -> None:
        self._process = os.getpid()
        self._waiters: Dict[int, Waiter] = {}
        self._waiters_lock = threading.Lock()
        self._senders: Optional[concurrent.futures.ThreadPoolExecutor] = None

    def _ours(self) -> None:
        # Threads are not forked along.
        if self._process != os.getpid():
            self._fresh()

    # -- asyncio -----------------------------------------

    def _waiter(self, pending: _native.Pending) -> Waiter:
        with self._waiters_lock:
            found = self._waiters.get(pending.epoch)
            if found is None:
                found = self._waiters[pending.epoch] = Waiter(pending)
            return found

    def _start(
        self,
        pending: _native.Pending,
        loop: asyncio.AbstractEventLoop,
        future: "asyncio.Future[Any]",
        send: Callable[[_native.Pending, int], None],
    ) -> None:
        waiter = self._waiter(pending)
        try:
            waiter.start(loop, future, send)
        except OSError:
            # The connection is gone; should the provider be found again, it is by another.
            with self._waiters_lock:
                if self._waiters.get(pending.epoch) is waiter:
                    del self._waiters[pending.epoch]
            raise

    async def _in_thread(self, act: Callable[[], T]) -> T:
        self._ours()
        with self._waiters_lock:
            if self._closed:
                raise ConflictError("this client is closed")
            if self._senders is None:
                self._senders = concurrent.futures.ThreadPoolExecutor(SENDERS, "cotensor-sender")
            senders = self._senders
        return await asyncio.get_running_loop().run_in_executor(senders, act)

    async def call_function(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        *,
        timeout: Optional[float] = None,
    ) -> Any:
        """As :meth:`SharedTensorClient.call_function <cotensor.client.SharedTensorClient.call_function>`, to be
        awaited."""
        args, named = arguments(name, args, kwargs)
        limit = self.timeout if timeout is None else timeout
        loop = asyncio.get_running_loop()
        pause = PAUSE
        for left in range(self.retry_count, -1, -1):
            future: "asyncio.Future[Any]" = loop.create_future()

            def send(future: "asyncio.Future[Any]" = future) -> None:
                pending = self._functions().pending(name)
                call = lambda pending, number: pending.call(number, name, args, named, timeout=limit)  # noqa: E731
                self._start(pending, loop, future, call)

            try:
                await self._in_thread(send)
                return await future
            except (NotFoundError, NoDaemonError) as error:
                if not not_called(error):
                    raise
                if isinstance(error, NotFoundError):
                    suggestion = await self._in_thread(lambda: self._suggestion(name))
                    if suggestion:
                        raise NotFoundError(f"{error}{suggestion}", field="name") from None
                if not left:
                    raise
            await asyncio.sleep(pause)
            pause *= 2

    async def acall_function(
        self, name: str, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, **options: Any
    ) -> Any:
        """The same as :meth:`call_function`."""
        return await self.call_function(name, args, kwargs, **options)

    async def alist_functions(self, prefix: str = "") -> List[Dict[str, Any]]:
        """:meth:`list_functions`, to be awaited."""
        return await self._in_thread(lambda: self.list_functions(prefix))

    async def aping(self) -> bool:
        """:meth:`ping`, to be awaited."""
        return await self._in_thread(self.ping)

    # -- tasks -----------------------------------------

    def submit_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        *,
        timeout: Optional[float] = None,
    ) -> str:
        """Has a function called, and does not wait for it: the id of the task, by which any client finds it.

        The task fails when it has not ended within ``timeout`` seconds; without, it takes as long as it takes. Its
        result is kept by the provider for a while (``task_ttl``), and can be had as often as wanted.
        """
        args, named = arguments(name, args, kwargs)
        submitted = self._patiently(lambda _: self._functions().submit(name, args, named, timeout=timeout), name)
        return task_id(submitted.epoch, submitted.number)

    def _task(self, task: str) -> _native.Task:
        return self._functions().task(*parts(task))

    def get_task_status(self, task_id: str) -> TaskStatus:
        """How far a task is: a text, ``pending``, ``running``, ``completed``, ``failed`` or ``cancelled``, with
        ``error`` and more as attributes.

        Raises :class:`NotFoundError` for a task that never was, or is kept no longer, or whose provider is gone.
        """
        found = self._task(task_id)
        return TaskStatus.of(found.epoch, found.status())

    def wait_for_task(self, task_id: str, timeout: Optional[float] = None) -> TaskStatus:
        """Waits until a task has ended, for at most ``timeout`` seconds (``None``: as long as it takes; 0 looks once): how
        far it is then."""
        found = self._task(task_id)
        return TaskStatus.of(found.epoch, found.wait(timeout))

    def get_task_result(self, task_id: str, timeout: Optional[float] = None) -> Any:
        """A task's result, once it has ended; raises what its function raised.

        Waits for at most ``timeout`` seconds, then raises :class:`TimedOutError`: the task goes on. A cancelled one
        raises :class:`CancelledError`.
        """
        found = self._task(task_id)
        info = found.wait(timeout)
        if info["state"] not in ENDED:
            raise TimedOutError(f"task {task_id} is {info['state']} after {timeout} s", field="timeout")
        return found.result()

    def cancel_task(self, task_id: str) -> TaskStatus:
        """Cancels a task, unless it has ended: how far it is then. A function that runs is asked to stop
        (:func:`~cotensor.functions.check_cancelled`; an ``async def`` is cancelled)."""
        found = self._task(task_id)
        return TaskStatus.of(found.epoch, found.cancel())

    def list_tasks(self, state: Optional[str] = None) -> List[TaskStatus]:
        """The newest tasks of every provider, at most 1000 of each, the newest first; those in one ``state``, if that is
        given."""
        if state is not None:
            _checks.one_of(state, "state", STATES)
        return [TaskStatus.of(provider["epoch"], info) for provider, info in self._functions().tasks(state)]

    async def asubmit_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        *,
        timeout: Optional[float] = None,
    ) -> str:
        """:meth:`submit_task`, to be awaited."""
        return await self._in_thread(lambda: self.submit_task(name, args, kwargs, timeout=timeout))

    async def aget_task_status(self, task_id: str) -> TaskStatus:
        """:meth:`get_task_status`, to be awaited."""
        return await self._in_thread(lambda: self.get_task_status(task_id))

    async def await_for_task(self, task_id: str, timeout: Optional[float] = None) -> TaskStatus:
        """:meth:`wait_for_task`, to be awaited."""
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[Any]" = loop.create_future()

        def send() -> int:
            found = self._task(task_id)
            pending = self._functions().pending_with(found)
            wait = lambda pending, number: pending.wait_for(number, found, timeout=timeout)  # noqa: E731
            self._start(pending, loop, future, wait)
            return found.epoch

        epoch = await self._in_thread(send)
        return TaskStatus.of(epoch, await future)

    async def aget_task_result(self, task_id: str, timeout: Optional[float] = None) -> Any:
        """:meth:`get_task_result`, to be awaited."""
        status = await self.await_for_task(task_id, timeout)
        if not status.ended:
            raise TimedOutError(f"task {task_id} is {status} after {timeout} s", field="timeout")
        return await self._in_thread(lambda: self._task(task_id).result())

    async def acancel_task(self, task_id: str) -> TaskStatus:
        """:meth:`cancel_task`, to be awaited."""
        return await self._in_thread(lambda: self.cancel_task(task_id))

    async def alist_tasks(self, state: Optional[str] = None) -> List[TaskStatus]:
        """:meth:`list_tasks`, to be awaited."""
        return await self._in_thread(lambda: self.list_tasks(state))

    # -- its life -----------------------------------------

    def close(self) -> None:
        """As :meth:`SharedTensorClient.close <cotensor.client.SharedTensorClient.close>`; what waits fails."""
        super().close()
        self._ours()
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
