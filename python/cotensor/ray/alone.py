"""A few threads at a time for each key."""

from __future__ import annotations

import contextlib
import threading
from typing import Dict, Generic, Iterator, Optional, Type, TypeVar

from ..errors import CotensorError

_K = TypeVar("_K")


class _Key:
    def __init__(self) -> None:
        #: The threads in a block, and with those that wait.
        self.taken = self.users = 0
        #: How many blocks have raised a shared error, and the last one: not itself, since its frames would keep what they have.
        self.failures = 0
        self.kind: Type[CotensorError] = CotensorError
        self.text = ""


class Places(Generic[_K]):
    """Places by keys, ``count`` for each. A key that no thread uses is forgotten.

    When a block raises an error of the class ``shared``, all threads that wait for its key raise it, too: they would fail for the
    same reason, one after the other.
    """

    def __init__(self, count: int, shared: Optional[Type[CotensorError]] = None) -> None:
        self._count, self._shared = count, shared
        self._changed = threading.Condition()
        self._keys: Dict[_K, _Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @contextlib.contextmanager
    def with_key(self, key: _K) -> Iterator[None]:
        """A block that at most ``count`` threads at a time run with this key."""
        with self._changed:
            own = self._keys.setdefault(key, _Key())
            own.users += 1
        try:
            with self._changed:
                before = own.failures
                self._changed.wait_for(lambda: own.taken < self._count or own.failures > before)
                if own.failures > before:
                    raise own.kind(own.text)
                own.taken += 1
            try:
                yield
            except CotensorError as error:
                if self._shared is not None and isinstance(error, self._shared):
                    with self._changed:
                        own.failures, own.kind, own.text = own.failures + 1, type(error), str(error)
                raise
            finally:
                with self._changed:
                    own.taken -= 1
                    self._changed.notify_all()
        finally:
            with self._changed:
                own.users -= 1
                if not own.users:
                    del self._keys[key]


class Alone(Places[_K]):
    """One place for each key."""

    def __init__(self, shared: Optional[Type[CotensorError]] = None) -> None:
        super().__init__(1, shared)
