"""The exceptions of this package.

Every exception is a :class:`CotensorError` and also the built-in exception of the same meaning, so ``except KeyError`` and
``except TimeoutError`` work. ``field`` is the argument, tensor or option that caused the error. ``file`` is the file, if any.
"""

from __future__ import annotations

import builtins
import concurrent.futures
import contextlib
import functools
from typing import Any, Optional, Sequence, Tuple, Type

#: A cause of a failed function: its type, message, traceback and arguments.
_Cause = Tuple[str, str, str, Optional[Sequence[Any]]]


class CotensorError(Exception):
    """The base class of all exceptions of this package."""

    #: The argument, tensor or option that caused the error.
    field: Optional[str]
    #: The file that caused the error.
    file: Optional[str]

    def __init__(self, message: str = "", *, field: Optional[str] = None, file: Optional[str] = None) -> None:
        super().__init__(message)
        self.field = field
        self.file = file

    def __str__(self) -> str:  # KeyError would quote the message
        return str(self.args[0]) if self.args else ""


class InvalidError(CotensorError, ValueError):
    """Invalid input: a shape, a dtype, a name, an option."""


class CorruptError(CotensorError, ValueError):
    """Damaged or truncated data, or data that violates its format."""


class NotFoundError(CotensorError, KeyError):
    """No tensor, function, task, file or model has that name."""


class ConflictError(CotensorError, RuntimeError):
    """The request conflicts with the current state: already published, not held, owned by another process."""


class OverBudgetError(CotensorError, MemoryError):
    """The memory limit is reached, even after eviction. The message names the holders."""


class RefusedError(CotensorError, PermissionError):
    """Forbidden by the sharing configuration, or owned by another user."""


class UnsupportedError(CotensorError, NotImplementedError):
    """Valid input that this package does not support: a dtype, a device, a layout."""


class IoError(CotensorError, OSError):
    """The operating system reported an error, or the other process ended."""


class NoDaemonError(IoError, ConnectionError):
    """No daemon answers at this socket or port."""


class EngineError(CotensorError, RuntimeError):
    """The engine failed on a valid graph and valid inputs."""


class TimedOutError(CotensorError, TimeoutError):
    """The time-out elapsed."""


class CancelledError(CotensorError, concurrent.futures.CancelledError):
    """The call or the task was cancelled."""


class RemoteError(CotensorError):
    """A function of another process raised an exception.

    If Python or this package has an exception class of that name, this is also an instance of it: ``except ValueError`` catches
    a function's ``ValueError``. ``args`` are then those of the function's exception, if they are numbers, strings, bytes,
    ``None``, or lists and tuples of them. So are attributes that the class makes from them, such as ``errno`` of an ``OSError``.
    """

    #: The name of the exception's class in the function's process.
    type: str
    #: Its message.
    message: str
    #: The traceback in the function's process, as Python prints it; possibly empty.
    remote_traceback: str
    #: The causes (``raise … from``), the nearest first: type, message, traceback, arguments. ``__cause__`` shows them.
    remote_causes: Tuple[_Cause, ...]
    #: The built-in class that this is also an instance of.
    _known: Optional[Type[Exception]] = None

    def __init__(
        self,
        type: str,
        message: str,
        remote_traceback: str = "",
        arguments: Optional[Sequence[Any]] = None,
        causes: Sequence[_Cause] = (),
    ) -> None:
        # Not that of the known class, which may need other arguments.
        Exception.__init__(self, f"{type}: {message}")
        self.field = self.file = None
        self.type = type
        self.message = message
        self.remote_traceback = remote_traceback
        self.remote_causes = tuple(causes)
        self._arguments = arguments
        if self._known is not None and arguments is not None:
            # Sets `args`, and attributes such as `errno`. Fails for another class of the same name.
            with contextlib.suppress(TypeError, ValueError):
                self._known.__init__(self, *arguments)
        if causes:
            self.__cause__ = remote(*causes[0], causes[1:])
        if remote_traceback:
            self.__notes__ = ["in the function's process:\n" + remote_traceback]

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"

    def __reduce__(self) -> Any:
        return remote, (self.type, self.message, self.remote_traceback, self._arguments, self.remote_causes)


#: The wire names of the library's own errors.
_KINDS = {
    "invalid": InvalidError,
    "corrupt": CorruptError,
    "not_found": NotFoundError,
    "conflict": ConflictError,
    "over_budget": OverBudgetError,
    "refused": RefusedError,
    "unsupported": UnsupportedError,
    "io": IoError,
    "unreachable": NoDaemonError,
    "engine": EngineError,
    "timed_out": TimedOutError,
    "cancelled": CancelledError,
}


@functools.lru_cache(maxsize=256)
def _remote_class(name: str) -> Type[RemoteError]:
    known = getattr(builtins, name, None) or (globals().get(name) if name in __all__ else None)
    if not (isinstance(known, type) and issubclass(known, Exception)) or issubclass(known, RemoteError):
        return RemoteError
    # They would end a loop of the caller without a word, and a coroutine cannot raise them.
    if issubclass(known, (StopIteration, StopAsyncIteration)):
        return RemoteError
    try:
        own = {"__doc__": f"{name} of a function.", "__module__": __name__, "_known": known}
        return type("Remote" + name, (RemoteError, known), own)
    except TypeError:  # a class with an incompatible layout
        return RemoteError


def remote(
    type: str,
    message: str,
    trace: str = "",
    arguments: Optional[Sequence[Any]] = None,
    causes: Sequence[_Cause] = (),
) -> CotensorError:
    """The exception for a failed function."""
    kind = _KINDS.get(type)
    if kind is not None:
        return kind(message)
    made = _remote_class("AttributeError" if type == "no_method" else type)
    try:
        return made(type, message, trace, arguments, causes)
    except TypeError:  # a class that cannot be made without its arguments, such as an ExceptionGroup
        return RemoteError(type, message, trace, arguments, causes)


__all__ = [
    "CancelledError",
    "ConflictError",
    "CorruptError",
    "CotensorError",
    "EngineError",
    "InvalidError",
    "NoDaemonError",
    "NotFoundError",
    "OverBudgetError",
    "RefusedError",
    "RemoteError",
    "IoError",
    "TimedOutError",
    "UnsupportedError",
]
