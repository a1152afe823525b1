"""Calls and tasks that asyncio waits for: one thread hears of all that one provider has to tell."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from typing import Any, Callable, Dict, List, Tuple

from .._native import Pending
from ..errors import IoError

log = logging.getLogger("cotensor.client")

#: How long the thread waits at a time, in seconds; it ends when nothing is left to wait for.
TURN = 1.0

_Waiting = Tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Waiter:
    """What is waited for of one provider, as asyncio's futures. The thread lives only while there is something to wait
    for."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: Dict[int, _Waiting] = {}
        self._thread: "threading.Thread | None" = None

    def start(
        self, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", send: Callable[[Pending, int], None]
    ) -> None:
        """Sends something, whose outcome becomes that of the future, which is the loop's. From any thread.

        Raises what keeps it from being sent.
        """
        number = next(self._numbers)
        with self._lock:
            self._waiting[number] = (loop, future)
        try:
            send(self._pending, number)
        except BaseException:
            with self._lock:
                self._waiting.pop(number, None)
            raise
        with self._lock:
            if self._thread is None and self._waiting:
                self._thread = threading.Thread(target=self._hear, name="cotensor-waiter", daemon=True)
                self._thread.start()

    def fail(self, error: Exception, *, deaf: bool = False) -> None:
        """Ends every wait; ``deaf`` says that the thread ends, too."""
        with self._lock:
            waiting = list(self._waiting.values())
            self._waiting.clear()
            if deaf:
                self._thread = None
        _tell([(one, error, True) for one in waiting])

    def _hear(self) -> None:
        try:
            self._hear_until_done()
        except BaseException as error:
            # Nobody else would ever tell those who wait; whoever starts something after this gets a new thread.
            log.warning("waiting for results failed: %s", error)
            # StopIteration, and what is no Exception, cannot be a future's.
            told = error if isinstance(error, Exception) and not isinstance(error, StopIteration) else None
            self.fail(told or IoError(f"waiting for results failed: {error!r}"), deaf=True)

    def _hear_until_done(self) -> None:
        while True:
            done = self._pending.next(TURN)
            told = []
            with self._lock:
                for number, value, failed in done:
                    waiting = self._waiting.pop(number, None)
                    if waiting is not None:
                        told.append((waiting, value, failed))
            _tell(told)
            del done, told
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return


def _tell(told: List[Tuple[_Waiting, Any, bool]]) -> None:
    loops: Dict[asyncio.AbstractEventLoop, Any] = {}
    for (loop, future), value, failed in told:
        loops.setdefault(loop, []).append((future, value, failed))
    for loop, outcomes in loops.items():
        try:
            loop.call_soon_threadsafe(_settle, outcomes)
        except RuntimeError:
            log.debug("%d results came after their event loop was closed", len(outcomes))


def _settle(outcomes: Any) -> None:
    for future, value, failed in outcomes:
        # Cancelled by whoever waited: the result is dropped, and so given back.
        if future.done():
            continue
        if failed:
            future.set_exception(value)
        else:
            future.set_result(value)
