"""Waits of the extension as asyncio futures. One thread waits for all of one queue."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from typing import Any, Callable, Dict, Generic, List, Protocol, Tuple, TypeVar

from .errors import IoError

log = logging.getLogger("cotensor.client")

#: How long one wait of the thread takes at most, in seconds.
WAIT_TIMEOUT = 1.0

_Waiting = Tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Queue(Protocol):
    """What a thread waits for: calls and tasks of a provider, or changes of names."""

    def wait(self, timeout: float) -> List[Tuple[int, Any, bool]]:
        """The number of each that is done, with its result and ``False``, or with its exception and ``True``."""

    def remove(self, number: int) -> None:
        """Ends a wait, which ``wait`` then does not return."""


_Queue = TypeVar("_Queue", bound=Queue)


class Waiter(Generic[_Queue]):
    """Completes futures with the outcomes of a queue. Its thread runs only while a future waits."""

    def __init__(self, queue: _Queue) -> None:
        self.queue = queue
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: Dict[int, _Waiting] = {}
        self._started: "Dict[asyncio.Future[Any], int]" = {}
        self._thread: "threading.Thread | None" = None

    def start(
        self, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", send: Callable[[_Queue, int], None]
    ) -> None:
        """Sends a call or a wait with ``send``. Its outcome completes ``future``, which belongs to ``loop``. Thread-safe.

        Raises what ``send`` raises.
        """
        number = next(self._numbers)
        with self._lock:
            self._waiting[number] = (loop, future)
            self._started[future] = number
        try:
            send(self.queue, number)
        except BaseException:
            with self._lock:
                self._taken(number)
            raise
        with self._lock:
            # Cancelled before it was sent: `cancel` found nothing in the queue.
            is_cancelled = future.cancelled()
            if is_cancelled:
                self._taken(number)
            if self._thread is None and self._waiting:
                self._thread = threading.Thread(target=self._run, name="cotensor-waiter", daemon=True)
                self._thread.start()
        if is_cancelled:
            self.queue.remove(number)

    def cancel(self, future: "asyncio.Future[Any]") -> None:
        """Ends the wait of a cancelled future. Thread-safe."""
        with self._lock:
            number = self._started.get(future)
            if number is not None:
                self._taken(number)
        if number is not None:
            self.queue.remove(number)

    def _taken(self, number: int) -> "_Waiting | None":
        """Removes a wait. Locked by the caller."""
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            del self._started[waiting[1]]
        return waiting

    def fail(self, error: Exception, *, thread_ended: bool = False) -> None:
        """Fails every future. With ``thread_ended``, the next :meth:`start` starts a new thread."""
        with self._lock:
            waiting = list(self._waiting.values())
            self._waiting.clear()
            self._started.clear()
            if thread_ended:
                self._thread = None
        _settle_all([(one, error, True) for one in waiting])

    def _run(self) -> None:
        try:
            self._wait_for_all()
        except BaseException as error:
            # Without this thread no future would complete. The next `start` starts a new thread.
            log.warning("waiting for results failed: %s", error)
            # A future accepts neither StopIteration nor a BaseException.
            failure = error if isinstance(error, Exception) and not isinstance(error, StopIteration) else None
            self.fail(failure or IoError(f"waiting for results failed: {error!r}"), thread_ended=True)

    def _wait_for_all(self) -> None:
        while True:
            done = self.queue.wait(WAIT_TIMEOUT)
            outcomes = []
            with self._lock:
                for number, value, failed in done:
                    waiting = self._taken(number)
                    if waiting is not None:
                        outcomes.append((waiting, value, failed))
            _settle_all(outcomes)
            del done, outcomes
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return


def _settle_all(outcomes: List[Tuple[_Waiting, Any, bool]]) -> None:
    loops: Dict[asyncio.AbstractEventLoop, Any] = {}
    for (loop, future), value, failed in outcomes:
        loops.setdefault(loop, []).append((future, value, failed))
    for loop, own in loops.items():
        try:
            loop.call_soon_threadsafe(_settle, own)
        except RuntimeError:
            log.debug("%d results arrived after their event loop was closed", len(own))


def _settle(outcomes: Any) -> None:
    for future, value, failed in outcomes:
        # Cancelled: dropping the result releases its leases.
        if future.done():
            continue
        if failed:
            future.set_exception(value)
        else:
            future.set_result(value)
