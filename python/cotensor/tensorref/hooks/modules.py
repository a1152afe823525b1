"""Calls of a model's modules are in the session in each thread, while it is entered."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Iterable, Iterator, List, Optional

import torch

from .. import threads


class Hook:
    """A hook of a module. Copies of the module have it, too: they run in the session while it is entered."""

    def __init__(self, hooks: Optional["ModuleHooks"], begins: bool) -> None:
        self._hooks = None if hooks is None else weakref.ref(hooks)
        self._begins = begins

    def __call__(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            # The compiled method is in the session.
            return
        hooks = None if self._hooks is None else self._hooks()
        if hooks is None:
            return
        if self._begins:
            hooks.begin_forward()
        else:
            hooks.end_forward()

    def __deepcopy__(self, memo: Any) -> "Hook":
        return self

    def __reduce__(self) -> Any:
        # In another process, there is no session.
        return Hook, (None, self._begins)


class ModuleHooks:
    """Enters a session for calls of modules in threads that are not in it."""

    def __init__(self, session: threads.Session) -> None:
        self._session = session
        self._handles: List[Any] = []
        #: Whether each call of this thread has entered the session.
        self._local = threading.local()

    def begin(self, models: Iterable[torch.nn.Module]) -> None:
        """Adds the hooks, until :meth:`end`."""
        for model in models:
            if isinstance(model, torch.jit.ScriptModule):
                # It has no hooks; its calls in other threads are not in the session.
                continue
            self._handles.append(model.register_forward_pre_hook(Hook(self, True), prepend=True))
            self._handles.append(model.register_forward_hook(Hook(self, False), always_call=True))

    def end(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextlib.contextmanager
    def forward(self) -> Iterator[bool]:
        """A call of a module, in the session if that is entered. Yields whether it is."""
        self.begin_forward()
        try:
            yield self._session.is_entered
        finally:
            self.end_forward()

    def begin_forward(self) -> None:
        """A call of a module begins."""
        # Threads of the backward pass have the modes of the thread that called it.
        enters = self._session.is_entered and not threads.is_in(self._session)
        self._local.__dict__.setdefault("forwards", []).append(enters)
        if enters:
            threads.enter(self._session)

    def end_forward(self) -> None:
        """The last call that has begun ends."""
        forwards = getattr(self._local, "forwards", None)
        if forwards and forwards.pop():
            threads.leave(self._session)
