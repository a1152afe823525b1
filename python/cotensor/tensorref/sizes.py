"""Numbers of bytes with units."""

from __future__ import annotations

import re
from typing import Union

from ..errors import InvalidError

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS.update({"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40})
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


def size_bytes(size: Union[int, str], field: str) -> int:
    """Bytes of a number, or of a text such as "4GiB" or "500MB". ``field`` is the argument's name in errors."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    bytes_ = int(float(found[1]) * _UNITS[(found[2] or "").lower()]) if found else 0
    if bytes_ <= 0:
        raise InvalidError(f'{field}: pass a number of bytes above 0 or a text such as "4GiB", not {size!r}', field=field)
    return bytes_
