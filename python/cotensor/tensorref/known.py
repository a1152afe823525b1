"""Finds the sessions that know a tensor, as fast for a hundred sessions as for one."""

from __future__ import annotations

import threading
import weakref
from typing import Collection, Dict, Iterable, Optional, Set


class Holder:
    """Knows tensors or memory for one session, and is found by them as long as it lives."""

    def __init__(self) -> None:
        #: Stands for it in :class:`Known`, which must not keep it.
        self.key = object()

    def registers(self, known: "Known", numbers: Collection[int]) -> None:
        """It adds ``numbers`` to ``known``: when it ends, those that it has by then end with it."""
        weakref.finalize(self, known.discard_all, numbers, self.key).atexit = False


class Known:
    """The keys of holders by the number of a tensor, ``id``, or of its memory."""

    def __init__(self) -> None:
        # A weak reference may end, and call, while this thread has the lock.
        self._lock = threading.RLock()
        self._keys: Dict[int, Set[object]] = {}

    def add(self, number: int, key: object) -> None:
        """A holder knows a number."""
        with self._lock:
            self._keys.setdefault(number, set()).add(key)

    def discard(self, number: int, key: object) -> None:
        """A holder does not know a number any more."""
        with self._lock:
            keys = self._keys.get(number)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._keys[number]

    def discard_all(self, numbers: Iterable[int], key: object) -> None:
        """A holder does not know some numbers any more."""
        for number in list(numbers):
            self.discard(number, key)

    def keys(self, number: Optional[int]) -> Collection[object]:
        """The holders that know a number."""
        return self._keys.get(number, ())  # type: ignore[arg-type]


#: Tensors of models, and results that a program sees on the device.
TENSORS = Known()
#: Memory of weights.
MEMORY = Known()
