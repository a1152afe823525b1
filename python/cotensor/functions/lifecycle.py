"""Closes providers, clients and servers before the interpreter shuts down.

Threads of the extension run Python functions. A shutdown would end such a thread inside a function, so this module first closes
the providers and interrupts running functions.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
import threading
import weakref
from typing import Any, Dict, Iterator, Protocol

from .. import _native
from .._forks import renewed
from ..errors import CancelledError

log = logging.getLogger("cotensor")


class _Closable(Protocol):
    def close(self) -> None: ...

    def ending(self) -> None:
        """Called before ``close()`` if the interpreter shuts down without a call of ``close()``."""


#: How long the shutdown waits for running functions, and then for interrupted ones, in seconds.
FINISH_TIMEOUT = 0.2
INTERRUPT_TIMEOUT = 1.0

_open: Dict[int, "weakref.ref[Any]"] = {}
_process = os.getpid()
_running: Dict[int, int] = {}
_lock = renewed(sys.modules[__name__], "_lock", threading.Lock)


def opened(thing: _Closable) -> None:
    """Registers ``thing`` to be closed before the shutdown; the last one first."""
    _open[id(thing)] = weakref.ref(thing)


def closed(thing: _Closable) -> None:
    """Removes ``thing`` after it was closed."""
    _open.pop(id(thing), None)


class running:
    """Marks this thread as running a function of a provider."""

    __slots__ = ("_thread",)

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        with _lock:
            _running[self._thread] = _running.get(self._thread, 0) + 1

    def __exit__(self, *exception: object) -> None:
        with _lock:
            left = _running[self._thread] - 1
            if left:
                _running[self._thread] = left
            else:
                del _running[self._thread]


def opened_by_now() -> Iterator[Any]:
    """What this process has opened and not closed, the last one first."""
    for reference in reversed(list(_open.values())):
        thing = reference()
        if thing is not None:
            yield thing


def _close_all() -> None:
    # A forked child does not close its parent's objects.
    if os.getpid() != _process:
        return
    for thing in opened_by_now():
        try:
            try:
                thing.ending()
            finally:
                thing.close()
        except Exception:
            # The others are closed, too.
            log.warning("a %s was not closed at the end of the program", type(thing).__name__, exc_info=True)
    _open.clear()
    if _native.stop_functions(FINISH_TIMEOUT):
        return
    for thread in list(_running):
        # The exception is raised when the function next runs Python code.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(CancelledError))
    _native.stop_functions(INTERRUPT_TIMEOUT)


def _forked() -> None:
    global _process
    _process = os.getpid()
    _open.clear()
    _running.clear()
    _native.reset_functions()


os.register_at_fork(after_in_child=_forked)
atexit.register(_close_all)
