"""One copy of every tensor per machine.

A :class:`Store` keeps tensors by name: ``Store()`` inside this process, ``connect()`` the daemon's, which every process of this
user shares::

    import cotensor

    store = cotensor.connect()              # `cotensor serve` runs the daemon
    store.put("x", array)                   # one copy in
    x = store.get("x").torch()              # no copy out, in whatever process

What is published never changes. Memory goes when nobody leases it and it is not kept; a process that dies leaves nothing behind.
"""

from __future__ import annotations

import os
from typing import Optional, Union

from . import errors
from ._native import Store, Tensor, TensorBuilder, Ticket, __version__, as_tensor, content_hash
from .errors import (
    CancelledError,
    ConflictError,
    CorruptError,
    CotensorError,
    EngineError,
    InvalidError,
    IoError,
    NoDaemonError,
    NotFoundError,
    OverBudgetError,
    RefusedError,
    RemoteError,
    TimedOutError,
    UnsupportedError,
)


def connect(socket: Optional[Union[str, "os.PathLike[str]"]] = None, *, client: Optional[str] = None) -> Store:
    """The daemon's store, which every process of this user shares.

    ``socket`` is where the daemon listens: ``COTENSOR_SOCKET`` says so, or it is at its usual place. ``client`` names this
    process for people (``cotensor who``, ``cotensor top``); its program's name, unless it says otherwise.

    Raises :class:`NoDaemonError`, a :class:`ConnectionError`, when no daemon answers there; ``cotensor serve`` starts one.
    """
    return Store.connect(socket, client=client)


__all__ = [
    "CancelledError",
    "ConflictError",
    "CorruptError",
    "CotensorError",
    "TensorBuilder",
    "EngineError",
    "InvalidError",
    "NoDaemonError",
    "NotFoundError",
    "OverBudgetError",
    "RefusedError",
    "RemoteError",
    "Store",
    "IoError",
    "Tensor",
    "Ticket",
    "TimedOutError",
    "UnsupportedError",
    "__version__",
    "connect",
    "content_hash",
    "errors",
    "as_tensor",
]
