"""Checks of options and arguments."""

from __future__ import annotations

import os
from typing import Any, Collection, Dict, Mapping, Optional, Sequence, Tuple

from .errors import InvalidError

#: The types of received tensors.
TENSORS = ("auto", "torch", "numpy", "cotensor")


def count(value: Any, field: str, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """An integer between ``least`` and ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidError(f"{field}: pass an integer from {least} to {most}, not {value!r}", field=field)
    return value


def truth(value: Any, field: str) -> bool:
    """Exactly True or False."""
    if not isinstance(value, bool):
        raise InvalidError(f"{field}: pass True or False, not {value!r}", field=field)
    return value


def seconds(value: Any, field: str) -> Optional[float]:
    """A positive number of seconds, or ``None``."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
        raise InvalidError(f"{field}: pass a positive number of seconds, not {value!r}", field=field)
    return value


def one_of(value: Any, field: str, known: Collection[str]) -> str:
    """One of the strings in ``known``."""
    if not isinstance(value, str) or value not in known:
        raise InvalidError(f"{field}: {value!r} is not one of {', '.join(known)}", field=field)
    return value


def path(value: Any, field: str) -> Any:
    """A path, or ``None``."""
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise InvalidError(f"{field}: pass a path, not {value!r}", field=field)
    return value


def text(value: Any, field: str) -> str:
    """A string, possibly empty."""
    if not isinstance(value, str):
        raise InvalidError(f"{field}: pass a string, not {value!r}", field=field)
    return value


def named(value: Any, field: str = "name") -> Optional[str]:
    """A non-empty string, or ``None``."""
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidError(f"{field}: pass a non-empty string, not {value!r}", field=field)
    return value


def arguments(
    name: str, args: Sequence[Any], kwargs: Optional[Mapping[str, Any]]
) -> Tuple[Sequence[Any], Optional[Dict[str, Any]]]:
    """Checks a name and arguments, and returns the arguments."""
    if not isinstance(name, str) or not name:
        raise InvalidError(f"name: pass the name of a function, not {name!r}", field="name")
    if isinstance(args, (str, bytes)) or not isinstance(args, (list, tuple)):
        raise InvalidError(f"args: pass a list or a tuple of arguments, not {type(args).__name__}", field="args")
    if kwargs is None:
        return args, None
    if not isinstance(kwargs, Mapping):
        raise InvalidError(
            f"kwargs: pass a dict of arguments by name, not {type(kwargs).__name__}", field="kwargs"
        )
    wrong = [key for key in kwargs if not isinstance(key, str)]
    if wrong:
        raise InvalidError(f"kwargs: {wrong[0]!r} is not the name of an argument", field="kwargs")
    return args, dict(kwargs)
