"""Modules that follow their name: a version is switched between forward passes, never during one."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch

from ..errors import ConflictError


class Gate:
    """Counts the threads that are in a module's forward pass.

    A copy of the module has a copy of its hooks; that one knows no version to switch to and does nothing.
    """

    def __init__(self, refresh: Callable[[torch.nn.Module], None]) -> None:
        self._refresh = refresh
        self._changed = threading.Condition()
        self._inside: Dict[int, int] = {}
        self._handles: List[Any] = []
        self._last: Optional[str] = None

    def install(self, module: torch.nn.Module) -> None:
        self._handles = [
            module.register_forward_pre_hook(self.enter),
            module.register_forward_hook(self.leave, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def enter(self, module: torch.nn.Module, args: Any) -> None:
        with self._changed:
            if not self._inside:
                self._refresh(module)
            me = threading.get_ident()
            self._inside[me] = self._inside.get(me, 0) + 1

    def leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        with self._changed:
            me = threading.get_ident()
            left = self._inside.get(me, 1) - 1
            if left > 0:
                self._inside[me] = left
            else:
                self._inside.pop(me, None)
                self._changed.notify_all()

    def is_news(self, reason: Optional[str]) -> bool:
        """Whether the last attempt to switch ended otherwise: nobody wants to read it before every pass."""
        news, self._last = reason != self._last, reason
        return news

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """While no thread is in a forward pass."""
        with self._changed:
            if threading.get_ident() in self._inside:
                raise ConflictError("the module is in a forward pass of this very thread")
            self._changed.wait_for(lambda: not self._inside)
            yield

    def __reduce__(self) -> Any:
        return Gate, (_nothing,)


def _nothing(module: torch.nn.Module) -> None:
    return None
