"""Numbers of bytes with units."""

from __future__ import annotations

from typing import Union

from .. import _native
from ..errors import InvalidError


def size_bytes(size: Union[int, str], field: str) -> int:
    """Bytes of a number, or of a text such as "4GiB" or "500MB". ``field`` is the argument's name in errors."""
    if isinstance(size, str):
        return _native.parse_size(size, field)
    return _number(size, field, "4GiB")


def rate_bytes(rate: Union[int, str], field: str) -> int:
    """Bytes per second of a number, or of a text such as "12GB/s"."""
    if isinstance(rate, str):
        return _native.parse_rate(rate, field)
    return _number(rate, field, "12GB/s")


def _number(value: int, field: str, example: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise InvalidError(f'{field}: pass a number of bytes above 0 or a text such as "{example}", not {value!r}', field=field)
