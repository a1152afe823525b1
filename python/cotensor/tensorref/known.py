"""Finds the sessions that know a tensor, as fast for a hundred sessions as for one."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Collection, Dict, Optional, Set


class Holder:
    """Knows tensors or memory for one session, and is found by them as long as it lives."""

    def __init__(self) -> None:
        #: Stands for it in :class:`Known`, which must not keep it.
        self.key = object()
        for known in (TENSORS, MEMORY):
            weakref.finalize(self, known.discard_all, self.key).atexit = False


class Known:
    """The keys of holders by the number of a tensor, ``id``, or of its memory."""

    def __init__(self) -> None:
        # A weak reference may end, and call, while this thread has the lock.
        self._lock = threading.RLock()
        self._keys: Dict[int, Set[object]] = {}
        #: The numbers that each holder knows.
        self._numbers: Dict[object, Set[int]] = {}

    def add(self, number: int, key: object) -> None:
        """A holder knows a number."""
        with self._lock:
            self._keys.setdefault(number, set()).add(key)
            self._numbers.setdefault(key, set()).add(number)

    def discard(self, number: int, key: object) -> None:
        """A holder does not know a number any more."""
        with self._lock:
            self._discard(self._keys, number, key)
            self._discard(self._numbers, key, number)

    def discard_all(self, key: object) -> None:
        """A holder does not know any number any more."""
        with self._lock:
            for number in self._numbers.pop(key, ()):
                self._discard(self._keys, number, key)

    @staticmethod
    def _discard(sets: Dict[Any, Set[Any]], at: object, value: object) -> None:
        values = sets.get(at)
        if values is not None:
            values.discard(value)
            if not values:
                del sets[at]

    def keys(self, number: Optional[int]) -> Collection[object]:
        """The holders that know a number."""
        return self._keys.get(number, ())  # type: ignore[arg-type]


#: Tensors of models, and results that a program sees on the device.
TENSORS = Known()
#: Memory of weights.
MEMORY = Known()
