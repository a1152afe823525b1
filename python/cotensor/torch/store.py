"""Which store is meant, and one loader at a time."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Iterator, Optional

from .. import _checks, connect
from .._native import Store, Tensor, Ticket, content_hash
from ..errors import ConflictError, InvalidError

_lock = threading.Lock()
_default: Optional[Store] = None


def resolve(store: Optional[Store]) -> Store:
    """The store itself; the daemon's, to which this process keeps one connection, where none is named."""
    global _default
    if store is not None:
        if not hasattr(store, "get_stats"):
            raise InvalidError(f"store: a store is expected, not {type(store).__name__}", field="store")
        return store
    with _lock:
        if _default is not None and _is_closed(_default):
            _default = None
        if _default is None:
            _default = connect()
        return _default


def leased(store: Store, name: str, version: Optional[int]) -> Tensor:
    """The newest version of a name, or the one that is asked for, which somebody has to lease still."""
    whole = store.get(name)
    if version is not None and whole.version != _checks.count(version, "version", 1):
        whole = store.lease((whole.id[0], version))
    return whole


def _is_closed(store: Store) -> bool:
    try:
        store.client  # noqa: B018 - asked for its exception
    except ConflictError:
        return True
    return False


@contextmanager
def claimed(store: Store, name: str) -> Iterator[None]:
    """Held by one thread of one process at a time: whoever makes what ``name`` is to be.

    It is a claim that never has results: who dies or is done gives it up, and the next one has it.
    """
    key = content_hash("cotensor.torch: who loads the model", name)
    claim = store.claim(key)
    try:
        yield
    finally:
        if isinstance(claim, Ticket):
            claim.abandon()
