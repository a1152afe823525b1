"""This program's share of a device, if a daemon divides the device among programs."""

from __future__ import annotations

import os
import time
import warnings
from typing import Optional, Tuple

from .. import _native
from ..errors import CotensorError, NoDaemonError, OverBudgetError, UnsupportedError
from ..functions import lifecycle
from .mover import Mover
from .shared_copies import identity
from .threads import Thread

#: Reports are sent at most this often. The daemon takes a program without reports for idle after five seconds.
_REPORT_SECONDS = 0.25
#: How long a program waits at first for its smallest amount, which others may have to free.
_FIRST_SECONDS = 1.0
#: The interval at which memory is checked that activations hold.
_FREEING_SECONDS = 0.05
_FOREVER_SECONDS = 3600.0


class Share:
    """Follows the share of a session. A smaller one is acknowledged when the memory beyond it is free."""

    def __init__(self, share: _native.DeviceShare, mover: Mover) -> None:
        self._share = share
        self._mover = mover
        self._process = os.getpid()
        self._reported = time.monotonic()
        self._closed = False
        until = time.monotonic() + _FIRST_SECONDS
        smallest = mover.memory.needs(mover.weights)[1]
        size, changes = share.wait(0, 0.0)
        while size < smallest and time.monotonic() < until:
            size, changes = share.wait(changes, until - time.monotonic())
        self._limit(size)
        mover.report = self.report
        # The thread ends before Python does.
        lifecycle.opened(self)
        self._thread = Thread(target=self._follow, args=(changes,), name="cotensor-share", daemon=True)
        self._thread.start()

    def report(self) -> None:
        """Reports activity, from time to time. Does not wait."""
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECONDS and os.getpid() == self._process:
            self._reported = now
            self._share.report(*self._mover.memory.needs(self._mover.weights))

    def close(self) -> None:
        """Gives the share back."""
        lifecycle.closed(self)
        self._closed = True
        self._mover.report = None
        if os.getpid() == self._process:
            self._share.close()
            self._thread.join()
        self._mover.memory.share = None

    def ending(self) -> None:
        """Called before :meth:`close` when Python ends."""

    def _limit(self, size: int) -> bool:
        """Whether the program uses no more than ``size`` bytes."""
        with self._mover.lock:
            freed = self._mover.limit(size)
        if freed:
            self._share.acknowledge(size)
        return freed

    def _follow(self, changes: int) -> None:
        freed = False
        while not self._closed:
            size, changes = self._share.wait(changes, _FOREVER_SECONDS if freed else _FREEING_SECONDS)
            if self._closed:
                return
            try:
                freed = self._limit(size)
            except Exception as failure:
                # Of the program's strategy or middleware, or of a copy. The daemon asks again.
                warnings.warn(f"the share of {self._mover.device} is not followed: {failure!r}", RuntimeWarning, stacklevel=2)
                freed = False


def join(mover: Mover, required: bool) -> Optional[Share]:
    """Joins the programs on the device of ``mover``. Without a daemon, an error if that is ``required``, else None.

    Raises :class:`OverBudgetError` if the device is too small for the least that all programs need.
    """
    name = identity(mover.device)
    if name is None:
        if required:
            raise UnsupportedError(f"broker: {mover.device} has no identity that other programs see", field="broker")
        return None
    try:
        needs: Tuple[int, int] = mover.memory.needs(mover.weights)
        return Share(_native.DeviceShare(name, mover.memory.capacity(), *needs), mover)
    except OverBudgetError:
        raise
    except CotensorError as failure:
        if required:
            raise
        if not isinstance(failure, NoDaemonError):
            warnings.warn(f"the device is not shared with other programs: {failure}", stacklevel=2)
        return None
