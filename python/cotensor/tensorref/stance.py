"""Whether compiled functions run compiled. PyTorch has one setting for all threads, its stance; since 2.6."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator

import torch

_lock = threading.Lock()
#: How many sessions want functions to run as they were written, and how many calls run compiled code in spite of them.
_uncompiled = _compiled = 0
_before: Any = None


def begin() -> None:
    """Compiled functions run as they were written from now on, until :func:`end`."""
    _change(1, 0)


def end() -> None:
    """Ends :func:`begin`."""
    _change(-1, 0)


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """Compiled functions run compiled between :func:`begin` and :func:`end`, also those that start in other threads."""
    _change(0, 1)
    try:
        yield
    finally:
        _change(0, -1)


def _change(uncompiled: int, compiled: int) -> None:
    global _uncompiled, _compiled, _before
    if not hasattr(torch.compiler, "set_stance"):
        return
    with _lock:
        earlier = _uncompiled
        _uncompiled += uncompiled
        _compiled += compiled
        if earlier and _uncompiled:
            torch.compiler.set_stance("default" if _compiled else "force_eager")
        elif _uncompiled:
            # It knows the program's own stance.
            _before = torch.compiler.set_stance("force_eager")
        elif earlier:
            _before.__exit__(None, None, None)
            _before = None
