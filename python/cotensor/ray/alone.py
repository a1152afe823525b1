"""One thread at a time for each key."""

from __future__ import annotations

import contextlib
import threading
from typing import Dict, Generic, Iterator, TypeVar

_K = TypeVar("_K")


class Alone(Generic[_K]):
    """Locks by keys. One that no thread holds or waits for is forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: Dict[_K, threading.Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.contextmanager
    def with_key(self, key: _K) -> Iterator[None]:
        """A block that one thread at a time runs with this key."""
        while True:
            with self._lock:
                lock = self._locks.setdefault(key, threading.Lock())
            with lock:
                if self._locks.get(key) is not lock:
                    # The block for which this one waited is over.
                    continue
                try:
                    yield
                    return
                finally:
                    with self._lock:
                        del self._locks[key]
