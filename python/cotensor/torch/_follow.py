"""Modules that follow their name: a version is switched between forward passes, never during one."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import weakref
from contextlib import contextmanager
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from ..errors import ConflictError

#: How long a pass waits for those of other threads to end, in seconds, so that a newer version can be switched to. One of
#: them may itself wait for this one.
PATIENCE = 5.0


class Gate:
    """Knows which threads are in a module's forward pass.

    A pass lasts as long as the frame of its call: torch runs no hook after a ``KeyboardInterrupt``, and a forked child has
    none of its parent's other threads.

    A copy of the module has a copy of its hooks; that one knows no version to switch to and does nothing.
    """

    def __init__(
        self, refresh: Callable[[torch.nn.Module], None], is_newer: Callable[[torch.nn.Module], bool]
    ) -> None:
        self._refresh = refresh
        self._is_newer = is_newer
        self._handles: List[Any] = []
        self._last: Optional[str] = None
        #: The version that could not be switched to.
        self.refused: Optional[Tuple[int, int]] = None
        self.begin()
        _gates.add(self)

    def begin(self) -> None:
        """Nobody is inside."""
        self._changed = threading.Condition()
        #: The frames of the passes of each thread.
        self._inside: Dict[int, List[FrameType]] = {}
        #: Who waits to have the module to itself.
        self._wanted = 0

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
        me = threading.get_ident()
        with self._changed:
            self._forget_ended()
            if me not in self._inside:
                self._changed.wait_for(lambda: not self._is_to_wait(module), PATIENCE)
            if not self._inside:
                self._refresh(module)
            self._inside.setdefault(me, []).append(sys._getframe(1))

    def _is_to_wait(self, module: torch.nn.Module) -> bool:
        """Whether something is to be done between passes, which whoever enters now would keep from it."""
        return self._wanted > 0 or self._is_busy() and self._is_newer(module)

    def leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        me = threading.get_ident()
        with self._changed:
            passes = self._inside.get(me, [])
            if passes:
                passes.pop()
            if not passes:
                self._inside.pop(me, None)
                self._changed.notify_all()

    def _forget_ended(self) -> None:
        """Forgets passes that ended unheard."""
        stacks = sys._current_frames() if self._inside else {}
        for thread, passes in list(self._inside.items()):
            running = _stack(stacks.get(thread))
            if running is not None:
                passes[:] = [frame for frame in passes if frame in running]
                if not passes:
                    del self._inside[thread]

    def _is_busy(self) -> bool:
        """Whether a thread is in a pass."""
        self._forget_ended()
        return bool(self._inside)

    def is_news(self, reason: Optional[str]) -> bool:
        """Whether the last attempt to switch ended otherwise: nobody wants to read it before every pass."""
        news, self._last = reason != self._last, reason
        return news

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """While no thread is in a forward pass; those that come meanwhile wait."""
        with self._changed:
            self._wanted += 1
            try:
                if self._is_busy() and threading.get_ident() in self._inside:
                    raise ConflictError("the module is in a forward pass of this very thread")
                # Now and then by itself: the end of a pass may go unheard.
                while self._is_busy():
                    self._changed.wait(0.1)
                yield
            finally:
                self._wanted -= 1
                self._changed.notify_all()

    def __reduce__(self) -> Any:
        return Gate, (_nothing, _never)


def _stack(frame: Optional[FrameType]) -> "Optional[set[FrameType]]":
    """The frames from this one on; ``None`` where they cannot be known: a generator that stops meanwhile leads nowhere."""
    found = set()
    last = frame
    while frame is not None:
        found.add(frame)
        last, frame = frame, frame.f_back
    suspends = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return None if last is not None and last.f_code.co_flags & suspends else found


def _forked() -> None:
    # Whoever locked or entered them is not in this process.
    for gate in list(_gates):
        gate.begin()


#: All there are.
_gates: "weakref.WeakSet[Gate]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)


def _nothing(module: torch.nn.Module) -> None:
    return None


def _never(module: torch.nn.Module) -> bool:
    return False
