"""When a call that found no function is tried again."""

from __future__ import annotations

import logging
import time
from typing import Optional

from ..errors import CotensorError, NoDaemonError, NotFoundError, RemoteError

log = logging.getLogger("cotensor.client")
waits = logging.getLogger("cotensor.waiting")

#: The pause before the first retry, in seconds. It doubles with each further retry.
PAUSE = 0.1
#: The longest pause between two attempts of a call that waits.
PAUSE_MAX = 1.0
#: A wait that takes longer is logged, as those of the extension are.
REPORT_AFTER = 2.0


def not_called(error: BaseException) -> bool:
    """Whether the error means that no function ran: there is no daemon, or no process provides the function."""
    if isinstance(error, NoDaemonError):
        return True
    if isinstance(error, RemoteError) or not isinstance(error, NotFoundError):
        return False
    return error.field in ("name", "function")


class Retries:
    """The attempts of one call: ``count`` retries, and more until ``wait`` seconds have passed, all before ``timeout``."""

    def __init__(self, count: int, wait: Optional[float], timeout: Optional[float]) -> None:
        self._began = time.monotonic()
        self._left = count
        self._waits_until = self._began + (wait or 0.0)
        self._end = None if timeout is None else self._began + timeout
        self._pause = PAUSE

    def time_left(self) -> Optional[float]:
        """The seconds until ``timeout``."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def is_waiting(self) -> bool:
        """Whether ``wait`` has not passed."""
        return time.monotonic() < self._waits_until

    def next_pause(self, error: CotensorError) -> Optional[float]:
        """The seconds before the next attempt, after ``error``. None if the error is final."""
        now = time.monotonic()
        if self._left <= 0 and now >= self._waits_until:
            return None
        pause = self._pause if self._left > 0 else min(self._pause, PAUSE_MAX, max(self._waits_until - now, 0.01))
        if self._end is not None and now + pause >= self._end:
            return None
        self._left, self._pause = self._left - 1, self._pause * 2
        if now + pause - self._began >= REPORT_AFTER:
            waits.warning("waiting for %.1f s before the next attempt: %s", pause, error)
        else:
            log.debug("retry in %.1f s: %s", pause, error)
        return pause
