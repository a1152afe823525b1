"""Options that people give."""

from __future__ import annotations

import os
from typing import Any, Collection, Optional

from .errors import InvalidError

#: As what tensors of arguments and results come.
TENSORS = ("auto", "torch", "numpy", "cotensor")


def count(value: Any, field: str, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """A whole number within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidError(f"{field}: {value!r} is no whole number from {least} to {most}", field=field)
    return value


def truth(value: Any, field: str) -> bool:
    """True or False, and nothing that might be meant as one of them."""
    if not isinstance(value, bool):
        raise InvalidError(f"{field}: True or False is expected, not {value!r}", field=field)
    return value


def seconds(value: Any, field: str) -> Optional[float]:
    """A time above zero, or ``None``."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
        raise InvalidError(f"{field}: {value!r} is no time in seconds", field=field)
    return value


def one_of(value: Any, field: str, known: Collection[str]) -> str:
    """One of these texts."""
    if not isinstance(value, str) or value not in known:
        raise InvalidError(f"{field}: {value!r} is none of {', '.join(known)}", field=field)
    return value


def path(value: Any, field: str) -> Any:
    """A path, or ``None``."""
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise InvalidError(f"{field}: a path is expected, not {value!r}", field=field)
    return value


def text(value: Any, field: str) -> str:
    """A text, also an empty one."""
    if not isinstance(value, str):
        raise InvalidError(f"{field}: a text is expected, not {value!r}", field=field)
    return value


def named(value: Any, field: str = "name") -> Optional[str]:
    """A text that says something, or ``None``."""
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidError(f"{field}: a text is expected, not {value!r}", field=field)
    return value
