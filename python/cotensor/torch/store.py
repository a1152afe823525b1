"""The default store, and a lock between processes."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import Iterator, Optional

from .. import _checks, _elsewhere, connect
from .._forks import renewed
from .._native import Store, Tensor, Ticket, content_hash
from ..errors import ConflictError, InvalidError

_lock = renewed(sys.modules[__name__], "_lock", threading.Lock)
_default: Optional[Store] = None


def resolve(store: Optional[Store]) -> Store:
    """The store, by default the daemon's, for which this process keeps one connection."""
    global _default
    if store is not None:
        if not hasattr(store, "get_stats"):
            raise InvalidError(f"store: pass a store, not {type(store).__name__}", field="store")
        return store
    with _lock:
        if _default is not None and _is_closed(_default):
            _default = None
        if _default is None:
            _default = connect()
        return _default


def leased(store: Store, name: str, version: Optional[int]) -> Tensor:
    """Leases the newest version of a name, or ``version``, which another lease has to keep."""
    whole = _elsewhere.get(store, name)
    if version is not None and whole.version != _checks.count(version, "version", 1):
        whole = store.lease((whole.id[0], version))
    return whole


def _is_closed(store: Store) -> bool:
    try:
        store.client  # noqa: B018 - for its exception
    except ConflictError:
        return True
    return False


@contextmanager
def claimed(store: Store, name: str) -> Iterator[None]:
    """A lock between processes, held by the one that makes the tensor ``name``.

    It is a claim without results. It ends with the block or with the process, and the next one gets it.
    """
    key = content_hash("cotensor.torch: who loads the model", name)
    claim = store.claim(key)
    try:
        yield
    finally:
        if isinstance(claim, Ticket):
            claim.abandon()
