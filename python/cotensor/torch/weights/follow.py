"""Modules that follow their name: a version is switched between forward passes, never during one."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import types
import weakref
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, TypeVar

import torch

from ...errors import ConflictError, UnsupportedError
from .collect import plain_module

#: Seconds that a pass waits for the passes and pins of other threads to end, so that the module can switch to a newer
#: version. One of them may itself wait for this pass.
PASS_TIMEOUT = 5.0

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _eagerly(act: _Function) -> _Function:
    """As :func:`torch.compiler.disable`, which imports the compiler: 2 s that a program without it need not spend."""
    disabled: Optional[Callable[..., Any]] = None

    @functools.wraps(act)
    def call(*args: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            if "torch._dynamo" not in sys.modules:
                return act(*args)
            disabled = torch.compiler.disable(act)  # type: ignore[no-untyped-call]
        return disabled(*args)

    return call  # type: ignore[return-value]


class Gate:
    """Knows which threads are in a forward pass of a module, and which have pinned its version.

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
        #: The number of pins of each thread.
        self._pinned: Dict[int, int] = {}
        #: The number of threads that wait to have the module to themselves.
        self._wanted = 0
        #: A pass has waited for the others in vain: none waits again until the module is free.
        self._gave_up = False

    def install(self, module: torch.nn.Module) -> None:
        self._handles = [
            module.register_forward_pre_hook(self.enter),
            module.register_forward_hook(self.leave, always_call=True),
        ]
        generate = getattr(type(module), "generate", None)
        if inspect.isfunction(generate) and "generate" not in vars(module):
            # A bound method is copied and pickled as one of the copy.
            vars(module)["generate"] = types.MethodType(_pinning(generate), module)
        compiler = sys.modules.get("torch._dynamo")
        if compiler is not None:
            # Code that was compiled before has no hooks in it, and no guard that notices them.
            compiler.reset()

    def remove(self, module: torch.nn.Module) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if hasattr(vars(module).get("generate"), "pins_version"):
            del vars(module)["generate"]

    @_eagerly
    def enter(self, module: torch.nn.Module, args: Any) -> None:
        me = threading.get_ident()
        with self._changed:
            self._settle(module, me)
            self._inside.setdefault(me, []).append(_pass())

    def _settle(self, module: torch.nn.Module, me: int) -> None:
        """Before the outermost pass or pin of a thread: switches to a newer version if no other thread is inside."""
        self._forget_ended()
        if me in self._inside or me in self._pinned:
            return
        if not self._changed.wait_for(lambda: not self._is_to_wait(module), PASS_TIMEOUT):
            self._gave_up = True
        if not self._is_busy():
            self._gave_up = False
            self._refresh(module)

    def _is_to_wait(self, module: torch.nn.Module) -> bool:
        """Whether another thread waits for the module to be free, which a pass that begins now would delay."""
        if self._gave_up and self._is_busy():
            return False
        return self._wanted > 0 or self._is_busy() and self._is_newer(module)

    @_eagerly
    def leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        me = threading.get_ident()
        with self._changed:
            passes = self._inside.get(me, [])
            if passes:
                passes.pop()
            if not passes:
                self._inside.pop(me, None)
                self._changed.notify_all()

    @contextmanager
    def pinned(self, module: torch.nn.Module) -> Iterator[None]:
        """Inside, the module stays on one version: the newest when the outermost pin or pass of this thread began."""
        me, changed = threading.get_ident(), self._changed
        with changed:
            self._settle(module, me)
            self._pinned[me] = self._pinned.get(me, 0) + 1
        try:
            yield
        finally:
            # A forked child has a condition of its own and none of its parent's pins.
            if changed is self._changed:
                with changed:
                    self._pinned[me] -= 1
                    if not self._pinned[me]:
                        del self._pinned[me]
                    changed.notify_all()

    def _forget_ended(self) -> None:
        """Forgets passes that ended without their hook."""
        stacks = sys._current_frames() if self._inside else {}
        for thread, passes in list(self._inside.items()):
            running = _stack(stacks.get(thread))
            if running is not None:
                passes[:] = [frame for frame in passes if frame in running]
                if not passes:
                    del self._inside[thread]

    def _is_busy(self) -> bool:
        """Whether a thread is in a pass or has a pin."""
        self._forget_ended()
        return bool(self._inside or self._pinned)

    def is_news(self, reason: Optional[str]) -> bool:
        """Whether the last attempt to switch ended otherwise: nobody wants to read it before every pass."""
        news, self._last = reason != self._last, reason
        return news

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """While no thread is in a forward pass or has a pin; those that come meanwhile wait."""
        with self._changed:
            self._wanted += 1
            try:
                me = threading.get_ident()
                if self._is_busy() and (me in self._inside or me in self._pinned):
                    raise ConflictError("this thread is in a forward pass of the module, or has pinned its version")
                # Again after a moment: a pass can end without its hook.
                while self._is_busy():
                    self._changed.wait(0.1)
                yield
            finally:
                self._wanted -= 1
                self._changed.notify_all()

    def __reduce__(self) -> Any:
        return Gate, (_nothing, _never)


@contextmanager
def pin(module: torch.nn.Module) -> Iterator[None]:
    """Inside, a module that follows its name stays on one version, and so do the modules in it that follow::

        with cotensor.torch.pin(model):
            first, second = model(x), model(y)          # both of one version

    The module switches to the newest version first. If other threads are using it, this waits up to 5 s for them, and goes
    on with their version then. ``generate`` of an attached module of transformers pins by itself. A module that does not
    follow needs no pin: it only switches by :func:`refresh`.
    """
    with ExitStack() as pins:
        for part in plain_module(module).modules():
            for hook in part._forward_pre_hooks.values():
                gate = getattr(hook, "__self__", None)
                if isinstance(gate, Gate):
                    pins.enter_context(gate.pinned(part))
        yield


def _pinning(generate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(generate)
    def pinned(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as pins:
            # Of assisted generation there are two models.
            for module in (self, *(value for value in kwargs.values() if isinstance(value, torch.nn.Module))):
                pins.enter_context(pin(module))
            return generate(self, *args, **kwargs)

    pinned.pins_version = True  # type: ignore[attr-defined]
    # Pickled by this name: as the method of the class.
    pinned.__name__ = "generate"
    return pinned


def check_compiler() -> None:
    """Raises :class:`UnsupportedError` where compiled modules could not follow."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None:
        freezes = bool(getattr(config, "freezing", False))
    else:
        freezes = os.environ.get("TORCHINDUCTOR_FREEZING") == "1"
    if freezes:
        raise UnsupportedError(
            "follow: torch._inductor.config.freezing makes weights constants of compiled code; turn it off, or attach "
            "without follow",
            field="follow",
        )


def _pass() -> FrameType:
    """The frame of the forward pass whose hook this is."""
    hook = sys._getframe(1)
    frame: Optional[FrameType] = hook
    while frame is not None and frame.f_globals is not vars(torch.nn.modules.module):
        frame = frame.f_back
    return frame or hook


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
