"""A store for asyncio.

::

    async with cotensor.connect_async() as store:
        await store.put("x", array)
        x = await store.wait("y", timeout=5)            # no thread waits for it alone
        async with store.watch("step ") as changes:
            async for change in changes:
                print(change.name, change.version)

Short calls run in asyncio's threads. All waits of a store together have one thread, which runs only while one of them waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from types import TracebackType
from typing import Any, Awaitable, Callable, Dict, Generator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

from ._forks import renewed
from ._native import ChangeQueue, Channel, ChannelReader, NameChange, Store, Tensor, Watch
from ._waiter import Waiter
from .errors import ConflictError, InvalidError, NotFoundError, TimedOutError

T = TypeVar("T")

__all__ = ["AsyncStore", "AsyncWatch", "Connecting"]


async def _run(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return await asyncio.to_thread(function, *args, **kwargs)


def _deadline(timeout: Optional[float]) -> Optional[float]:
    """The end of a wait by ``time.monotonic()``."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise InvalidError(f"timeout: pass a non-negative number of seconds, not {timeout!r}", field="timeout")
    return time.monotonic() + timeout


class AsyncStore:
    """A :class:`cotensor.Store` whose methods are awaited. ``store`` is the store itself; tensors are the same objects."""

    def __init__(self, store: Store) -> None:
        #: The store, for methods that do not wait.
        self.store = store
        # A forked child does not have the thread of its parent's waits.
        self._waiter: "Optional[Waiter[ChangeQueue]]" = renewed(self, "_waiter", lambda: None)
        self._closed = False

    async def get(self, name: str, *default: Any, holder: Optional[str] = None) -> Any:
        """As :meth:`cotensor.Store.get`."""
        return await _run(self.store.get, name, *default, holder=holder)

    async def lease(self, id: Tuple[int, int], holder: Optional[str] = None) -> Tensor:  # noqa: A002
        """As :meth:`cotensor.Store.lease`."""
        return await _run(self.store.lease, id, holder)

    async def put(self, name: str, array: Any, **options: Any) -> Tensor:
        """As :meth:`cotensor.Store.put`."""
        return await _run(self.store.put, name, array, **options)

    async def put_group(self, name: str, arrays: Mapping[str, Any], **options: Any) -> Tensor:
        """As :meth:`cotensor.Store.put_group`."""
        return await _run(self.store.put_group, name, arrays, **options)

    async def put_many(self, arrays: Mapping[str, Any]) -> Dict[str, Tensor]:
        """As :meth:`cotensor.Store.put_many`."""
        return await _run(self.store.put_many, arrays)

    async def get_many(self, names: Sequence[str], *, missing_ok: bool = False) -> Dict[str, Tensor]:
        """As :meth:`cotensor.Store.get_many`."""
        return await _run(self.store.get_many, names, missing_ok=missing_ok)

    async def names(self, prefix: Optional[str] = None) -> List[str]:
        """As :meth:`cotensor.Store.names`."""
        return await _run(self.store.names, prefix)

    async def contains(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return await _run(self.store.__contains__, name)

    async def remove(self, name: str, *, missing_ok: bool = False) -> None:
        """As :meth:`cotensor.Store.remove`."""
        await _run(self.store.remove, name, missing_ok=missing_ok)

    async def wait(
        self, name: str, timeout: Optional[float] = None, *, after: Optional[Tensor] = None, holder: Optional[str] = None
    ) -> Tensor:
        """As :meth:`cotensor.Store.wait`."""
        deadline = _deadline(timeout)
        found = await _run(self._other, name, after, holder)
        if found is not None:
            return found
        async with AsyncWatch(self, lambda: self.store.watch(name=name)) as watch:
            while True:
                # A version that was published before the watch began is found here.
                found = await _run(self._other, name, after, holder)
                if found is not None:
                    return found
                await watch.get(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def watch(
        self,
        prefix: Optional[str] = None,
        *,
        name: Optional[str] = None,
        existing: bool = False,
        every: bool = False,
        versions_max: Optional[int] = None,
        bytes_max: Optional[int] = None,
    ) -> AsyncWatch:
        """As :meth:`cotensor.Store.watch`, from ``async with`` or the first ``async for`` on."""
        options: Dict[str, Any] = {"versions_max": versions_max, "bytes_max": bytes_max}
        open_watch = functools.partial(self.store.watch, prefix, name=name, existing=existing, every=every, **options)
        return AsyncWatch(self, open_watch, every)

    async def channel(self, name: str, shape: Any, dtype: Any = None, **options: Any) -> Channel:
        """As :meth:`cotensor.Store.channel`."""
        return await _run(self.store.channel, name, shape, dtype, **options)

    async def read_channel(self, name: str, **options: Any) -> ChannelReader:
        """As :meth:`cotensor.Store.read_channel`. The reader serves ``async for``."""
        return await _run(self.store.read_channel, name, **options)

    async def close(self) -> None:
        """Closes the store. Waits that are not done raise :class:`ConflictError`."""
        self._closed = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.fail(ConflictError("this store is closed"))
        await _run(self.store.close)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]] = None,
        value: Optional[BaseException] = None,
        trace: Optional[TracebackType] = None,
    ) -> None:
        await self.close()

    def _other(self, name: str, after: Optional[Tensor], holder: Optional[str]) -> Optional[Tensor]:
        """The newest version of a name, unless it is ``after``."""
        if name not in self.store:
            return None
        try:
            found = self.store.get(name, holder=holder)
        except NotFoundError:
            return None
        if after is not None and found.id == after.id:
            found.release()
            return None
        return found

    async def _changed(self, watch: Watch, timeout: Optional[float]) -> None:
        """Waits until a watch has changes, or for ``timeout`` seconds."""
        if self._closed:
            raise ConflictError("this store is closed")
        if self._waiter is None:
            self._waiter = Waiter(ChangeQueue(self.store))
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[None]" = loop.create_future()
        waiter = self._waiter
        waiter.start(loop, future, lambda queue, number: queue.add(number, watch, timeout))
        try:
            await future
        except asyncio.CancelledError:
            waiter.cancel(future)
            raise


class AsyncWatch:
    """Iterates over changes of names, as :class:`cotensor.Watch` does. :meth:`AsyncStore.watch` makes it."""

    def __init__(self, store: AsyncStore, open_watch: Callable[[], Watch], every: bool = False) -> None:
        self._store = store
        # Leasing a version can be a call of the daemon.
        self._leases = every
        self._open_watch = open_watch
        self._watch: Optional[Watch] = None

    async def get(self, timeout: Optional[float] = None) -> NameChange:
        """The next change. Raises :class:`TimedOutError` after ``timeout`` seconds without one."""
        deadline = _deadline(timeout)
        watch = await self._opened()
        left: Optional[float] = None
        while True:
            if watch.closed:
                raise ConflictError("this watch is closed")
            change = await self._take(watch)
            if change is not None:
                return change
            if deadline is not None and left == 0.0:
                raise TimedOutError("no watched name changed in time")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            await self._store._changed(watch, left)

    async def _take(self, watch: Watch) -> Optional[NameChange]:
        if not self._leases:
            # The thread of the waits may still apply an answer to a cancelled `get`. That can be a call of the daemon.
            with contextlib.suppress(ConflictError):
                return watch._take(wait=False)
        return await _run(watch._take, wait=True)

    @property
    def dropped(self) -> int:
        """As :attr:`cotensor.Watch.dropped`."""
        return 0 if self._watch is None else self._watch.dropped

    def close(self) -> None:
        """Ends the iteration after the change that is waited for."""
        if self._watch is not None:
            self._watch.close()

    async def _opened(self) -> Watch:
        if self._watch is None:
            self._watch = await _run(self._open_watch)
        return self._watch

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> NameChange:
        if self._watch is not None and self._watch.closed:
            raise StopAsyncIteration
        return await self.get()

    async def __aenter__(self) -> AsyncWatch:
        await self._opened()
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]] = None,
        value: Optional[BaseException] = None,
        trace: Optional[TracebackType] = None,
    ) -> None:
        self.close()


class Connecting(Awaitable[AsyncStore]):
    """A connection that is awaited, or entered with ``async with``. :func:`cotensor.connect_async` makes it."""

    def __init__(self, connect: Callable[[], Store]) -> None:
        self._connect = connect
        self._store: Optional[AsyncStore] = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._connected().__await__()

    async def _connected(self) -> AsyncStore:
        self._store = AsyncStore(await _run(self._connect))
        return self._store

    async def __aenter__(self) -> AsyncStore:
        return await self._connected()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]] = None,
        value: Optional[BaseException] = None,
        trace: Optional[TracebackType] = None,
    ) -> None:
        if self._store is not None:
            await self._store.close()
