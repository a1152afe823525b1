"""A few threads at a time for each key."""

from __future__ import annotations

import contextlib
import threading
from typing import Dict, Generic, Iterator, TypeVar

_K = TypeVar("_K")


class Places(Generic[_K]):
    """Places by keys, ``count`` for each. A key whose places are all free is forgotten."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._taken: Dict[_K, int] = {}

    def __len__(self) -> int:
        return len(self._taken)

    @contextlib.contextmanager
    def with_key(self, key: _K) -> Iterator[None]:
        """A block that at most ``count`` threads at a time run with this key."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken.get(key, 0) < self._count)
            self._taken[key] = self._taken.get(key, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._taken[key] -= 1
                if not self._taken[key]:
                    del self._taken[key]
                self._changed.notify_all()


class Alone(Places[_K]):
    """One place for each key."""

    def __init__(self) -> None:
        super().__init__(1)
