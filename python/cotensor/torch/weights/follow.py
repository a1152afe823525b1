"""Modules that follow their name: they switch versions between forward passes, never during one."""

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

#: How long a pass waits for passes and pins of other threads before a switch, in seconds. The limit prevents a deadlock if one of
#: them waits for this pass.
PASS_TIMEOUT = 5.0

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _eagerly(act: _Function) -> _Function:
    """As :func:`torch.compiler.disable`, but without importing the compiler, which takes 2 s."""
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
    """Tracks the threads that run a forward pass of a module or pin its version.

    A pass lasts as long as the frame of its call, because torch runs no hook after a ``KeyboardInterrupt``, and a forked child
    has only one of its parent's threads.

    A copy of the module has a copy of the hooks. The copied gate never switches.
    """

    def __init__(
        self, refresh: Callable[[torch.nn.Module], None], is_newer: Callable[[torch.nn.Module], bool]
    ) -> None:
        self._refresh = refresh
        self._is_newer = is_newer
        self._handles: List[Any] = []
        self._last: Optional[str] = None
        #: The version that does not fit the module.
        self.refused: Optional[Tuple[int, int]] = None
        self.reset()
        _gates.add(self)

    def reset(self) -> None:
        """Resets to a state without passes and pins."""
        self._changed = threading.Condition()
        #: The frames of the passes of each thread.
        self._inside: Dict[int, List[FrameType]] = {}
        #: The number of pins of each thread.
        self._pinned: Dict[int, int] = {}
        #: The number of threads that wait for exclusive use of the module.
        self._wanted = 0
        #: Whether a pass has waited in vain. Then no pass waits until the module is free.
        self._gave_up = False

    def install(self, module: torch.nn.Module) -> None:
        self._handles = [
            module.register_forward_pre_hook(self.enter),
            module.register_forward_hook(self.leave, always_call=True),
        ]
        generate = getattr(type(module), "generate", None)
        if inspect.isfunction(generate) and "generate" not in vars(module):
            # A bound method is copied and pickled with the module.
            vars(module)["generate"] = types.MethodType(_pinning(generate), module)
        compiler = sys.modules.get("torch._dynamo")
        if compiler is not None:
            # Earlier compiled code has neither these hooks nor a guard on them.
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
            self._prepare(module, me)
            self._inside.setdefault(me, []).append(_pass())

    def _prepare(self, module: torch.nn.Module, me: int) -> None:
        """Before the outermost pass or pin of a thread: switches to a newer version if no other thread has one."""
        self._forget_ended()
        if me in self._inside or me in self._pinned:
            return
        if not self._changed.wait_for(lambda: not self._must_wait(module), PASS_TIMEOUT):
            self._gave_up = True
        if not self._is_busy():
            self._gave_up = False
            self._refresh(module)

    def _must_wait(self, module: torch.nn.Module) -> bool:
        """Whether this pass would delay a switch or another thread's exclusive use."""
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
        """Inside, the module stays on the newest version at the start of this thread's outermost pin or pass."""
        me, changed = threading.get_ident(), self._changed
        with changed:
            self._prepare(module, me)
            self._pinned[me] = self._pinned.get(me, 0) + 1
        try:
            yield
        finally:
            # After a fork the child has a new condition, without its parent's pins.
            if changed is self._changed:
                with changed:
                    self._pinned[me] -= 1
                    if not self._pinned[me]:
                        del self._pinned[me]
                    changed.notify_all()

    def _forget_ended(self) -> None:
        """Removes passes that ended without their hook."""
        for thread, passes in list(self._inside.items()):
            passes[:] = [frame for frame in passes if not _has_ended(frame)]
            if not passes:
                del self._inside[thread]

    def _is_busy(self) -> bool:
        """Whether a thread runs a pass or has a pin."""
        self._forget_ended()
        return bool(self._inside or self._pinned)

    def is_new_reason(self, reason: Optional[str]) -> bool:
        """Whether the last attempt to switch failed for another reason, so that each reason is logged once."""
        is_new, self._last = reason != self._last, reason
        return is_new

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Waits until no thread runs a pass or has a pin, and blocks new passes for the duration of the block."""
        with self._changed:
            self._wanted += 1
            try:
                me = threading.get_ident()
                if self._is_busy() and (me in self._inside or me in self._pinned):
                    raise ConflictError("this thread runs a forward pass of the module or pins its version: refresh it later")
                # With a time-out, because a pass can end without its hook.
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
    """Inside, a module that follows its name stays on one version, with all its submodules that follow::

        with cotensor.torch.pin(model):
            first, second = model(x), model(y)          # both of one version

    The module first switches to the newest version. If other threads use it, this waits for up to 5 s, then keeps their version.
    ``generate`` of an attached transformers module pins by itself. A module that does not follow needs no pin: only
    :func:`refresh` switches it.
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
            # Assisted generation uses two models.
            for module in (self, *(value for value in kwargs.values() if isinstance(value, torch.nn.Module))):
                pins.enter_context(pin(module))
            return generate(self, *args, **kwargs)

    pinned.pins_version = True  # type: ignore[attr-defined]
    # `pickle` finds the method of the class by this name.
    pinned.__name__ = "generate"
    return pinned


def check_compiler() -> None:
    """Raises :class:`UnsupportedError` if compiled modules cannot follow."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None:
        freezes = bool(getattr(config, "freezing", False))
    else:
        freezes = os.environ.get("TORCHINDUCTOR_FREEZING") == "1"
    if freezes:
        raise UnsupportedError(
            "follow: torch._inductor.config.freezing compiles weights into the code; turn it off, or attach "
            "without follow",
            field="follow",
        )


def _pass() -> FrameType:
    """The frame of the forward pass that runs this hook."""
    hook = sys._getframe(1)
    frame: Optional[FrameType] = hook
    while frame is not None and frame.f_globals is not vars(torch.nn.modules.module):
        frame = frame.f_back
    return frame or hook


def _has_ended(frame: FrameType) -> bool:
    """Whether the call of this frame has returned or raised. If so, this releases its variables, which only debuggers read.

    The stacks of other threads are not read: they change meanwhile, which once crashed the interpreter.
    """
    try:
        frame.clear()
    except RuntimeError:
        return False
    return True


def _forked() -> None:
    # The threads that locked or entered them are not in this process.
    for gate in list(_gates):
        gate.reset()


#: All gates of this process.
_gates: "weakref.WeakSet[Gate]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)


def _nothing(module: torch.nn.Module) -> None:
    return None


def _never(module: torch.nn.Module) -> bool:
    return False
