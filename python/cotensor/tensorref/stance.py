"""Whether compiled functions run compiled. PyTorch has one setting for all threads, its stance; since 2.6."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator

import torch


class _Stance:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: How many sessions want functions to run as they were written, and how many calls run compiled code nevertheless.
        self._eager = self._compiled = 0
        self._before: Any = None

    @contextlib.contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Compiled functions run as they were written."""
        self._change(1, 0)
        try:
            yield
        finally:
            self._change(-1, 0)

    @contextlib.contextmanager
    def compiled(self) -> Iterator[None]:
        """Compiled functions run compiled within :meth:`uncompiled`, also those that start in other threads."""
        self._change(0, 1)
        try:
            yield
        finally:
            self._change(0, -1)

    def _change(self, eager: int, compiled: int) -> None:
        if not hasattr(torch.compiler, "set_stance"):
            return
        with self._lock:
            before = self._eager
            self._eager += eager
            self._compiled += compiled
            if before and self._eager:
                torch.compiler.set_stance("default" if self._compiled else "force_eager")
            elif self._eager:
                # It knows the program's own stance.
                self._before = torch.compiler.set_stance("force_eager")
            elif before:
                self._before.__exit__(None, None, None)
                self._before = None


_stance = _Stance()
uncompiled, compiled = _stance.uncompiled, _stance.compiled
