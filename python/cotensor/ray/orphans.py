"""Copies of tensors whose nodes have ended: in the store without a lease, until their memory is needed."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import Optional, Tuple

from .._native import Store, Tensor
from ..errors import CotensorError, NotFoundError
from .handle import Id
from .holdings import Key

#: The most copies. The one that has been here longest ago is removed for another one.
COPIES_MAX = 1024


class Orphans:
    """The copies of a node. No process reports the ends of their tokens: the node that did has ended."""

    def __init__(self, store: Store, copies_max: int = COPIES_MAX) -> None:
        self._store, self._copies_max = store, copies_max
        self._lock = threading.Lock()
        self._copies: "OrderedDict[Key, Tuple[str, Id]]" = OrderedDict()

    def add(self, key: Key, copy: Tensor) -> None:
        """Keeps a copy, and ends its lease."""
        with self._lock:
            self._copies[key] = copy.name, copy.id
            self._copies.move_to_end(key)
            over = self._copies.popitem(last=False) if len(self._copies) > self._copies_max else None
        copy.release()
        if over is not None:
            _, (name, id_) = over
            remove(self._store, name, id_)

    def lease(self, key: Key) -> Optional[Tensor]:
        """The copy, unless it was freed."""
        with self._lock:
            found = self._copies.get(key)
        if found is None:
            return None
        try:
            return self._store.lease(found[1])
        except NotFoundError:
            with self._lock:
                self._copies.pop(key, None)
            return None


def remove(store: Store, name: str, id_: Id) -> None:
    """Removes the name of a copy, whose memory is freed with its last lease. Without a daemon, there is no copy."""
    with contextlib.suppress(CotensorError):
        store.remove(name, missing_ok=True, id=id_)
