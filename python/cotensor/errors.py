"""What can go wrong, as exceptions.

Every exception of this package is a :class:`CotensorError`, and one of Python's own that says the same, so that
``except KeyError`` or ``except TimeoutError`` works as anywhere. ``field`` names the argument, tensor or option that an error
is about, and ``file`` the file, where there is one.
"""

from __future__ import annotations

from typing import Optional


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


class SystemFailure(CotensorError, OSError):
    """The operating system said no, or the other process is gone."""


class EngineError(CotensorError, RuntimeError):
    """The engine failed on a valid graph and valid inputs."""


class TimedOutError(CotensorError, TimeoutError):
    """It took longer than allowed."""


__all__ = [
    "ConflictError",
    "CorruptError",
    "CotensorError",
    "EngineError",
    "InvalidError",
    "NotFoundError",
    "OverBudgetError",
    "RefusedError",
    "SystemFailure",
    "TimedOutError",
    "UnsupportedError",
]
