"""What can go wrong, as exceptions.

Every exception of this package is a :class:`CotensorError`, and one of Python's own that says the same, so that
``except KeyError`` or ``except TimeoutError`` works as anywhere. ``field`` names the argument, tensor or option that an
error is about, and ``file`` the file, where there is one.
"""

from __future__ import annotations

import builtins
import concurrent.futures
import functools
from typing import Any, Optional, Sequence, Tuple, Type


class CotensorError(Exception):
    """Anything that Cotensor raises."""

    #: The argument, tensor or option that it is about.
    field: Optional[str]
    #: The file that it is about.
    file: Optional[str]

    def __init__(self, message: str = "", *, field: Optional[str] = None, file: Optional[str] = None) -> None:
        super().__init__(message)
        self.field = field
        self.file = file

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0]) if self.args else ""


class InvalidError(CotensorError, ValueError):
    """Wrong input: a shape, a dtype, a name, an option."""


class CorruptError(CotensorError, ValueError):
    """Bytes that are damaged, cut short or not what their format says."""


class NotFoundError(CotensorError, KeyError):
    """No tensor, function, task, file or model of that name."""


class ConflictError(CotensorError, RuntimeError):
    """It clashes with the present state: published already, not held, belonging to another process."""


class OverBudgetError(CotensorError, MemoryError):
    """The memory budget does not allow it, even after eviction; the message says who holds what."""


class RefusedError(CotensorError, PermissionError):
    """Not allowed: by the sharing configuration, or because it is another user's."""


class UnsupportedError(CotensorError, NotImplementedError):
    """Valid, but nothing here can do it: a dtype, a device, a layout."""


class IoError(CotensorError, OSError):
    """The operating system said no, or the other process is gone."""


class NoDaemonError(IoError, ConnectionError):
    """No daemon answers at this socket or port."""


class EngineError(CotensorError, RuntimeError):
    """The engine failed on a valid graph and valid inputs."""


class TimedOutError(CotensorError, TimeoutError):
    """It took longer than allowed."""


class CancelledError(CotensorError, concurrent.futures.CancelledError):
    """A call or a task that was cancelled."""


class RemoteError(CotensorError):
    """A function of another process raised an exception.

    Where Python or this package has that exception, this is one of it, too: ``except ValueError`` catches a function's
    ``ValueError``.
    """

    #: The exception's type, as its process names it.
    type: str
    #: Its message.
    message: str
    #: Where it was raised there, as Python prints it; may be empty.
    remote_traceback: str
    #: What it was raised ``from``, the nearest first: type, message and traceback of each. ``__cause__`` is made of them.
    remote_causes: Tuple[Tuple[str, str, str], ...]

    def __init__(
        self, type: str, message: str, remote_traceback: str = "", causes: Sequence[Tuple[str, str, str]] = ()
    ) -> None:
        super().__init__(f"{type}: {message}")
        self.type = type
        self.message = message
        self.remote_traceback = remote_traceback
        self.remote_causes = tuple(causes)
        if causes:
            self.__cause__ = remote(*causes[0], causes[1:])
        if remote_traceback:
            self.__notes__ = ["in the function's process:\n" + remote_traceback]

    def __reduce__(self) -> Any:
        return remote, (self.type, self.message, self.remote_traceback, self.remote_causes)


#: What failures of the library itself are called when they cross.
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
    try:
        return type("Remote" + name, (RemoteError, known), {"__doc__": f"A function's {name}.", "__module__": __name__})
    except TypeError:  # its layout is not to be combined
        return RemoteError


def remote(
    type: str, message: str, trace: str = "", causes: Sequence[Tuple[str, str, str]] = ()
) -> CotensorError:
    """The exception of a function's failure."""
    kind = _KINDS.get(type)
    if kind is not None:
        return kind(message)
    made = _remote_class("AttributeError" if type == "no_method" else type)
    try:
        return made(type, message, trace, causes)
    except TypeError:  # one that wants arguments of its own, such as UnicodeDecodeError
        return RemoteError(type, message, trace, causes)


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
