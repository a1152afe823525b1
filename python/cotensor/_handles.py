"""Tensors, stores and clients as handles: what ``pickle`` makes of them, for other processes of the same user.

The handle of a tensor is its name, its version and the identity of its store. It holds no lease and no secret: a process
that opens one connects with credentials of its own.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Dict, Optional, Tuple

from ._native import Store, Tensor
from .errors import ConflictError, InvalidError, NotFoundError

_lock = threading.Lock()
#: The connections over which handles of tensors are opened, one for each socket.
_stores: Dict[str, Store] = {}

#: Offset in bytes, dtype, shape and strides of a view.
View = Tuple[int, str, Tuple[int, ...], Tuple[int, ...]]


def open_store(socket: str, client: str) -> Store:
    """The store of a handle: a connection of its own."""
    return Store.connect(socket, client=client)


def open_tensor(
    socket: str, epoch: int, name: str, id: Tuple[int, int], view: Optional[View]  # noqa: A002
) -> Tensor:
    """The tensor of a handle, leased.

    Raises :class:`NotFoundError` when nobody keeps that version any more; :class:`NoDaemonError` when no daemon answers;
    :class:`ConflictError` when another daemon is there now.
    """
    if not isinstance(name, str):
        raise InvalidError(f"a handle has a name, not {type(name).__name__}", field="name")
    store = _connected(socket)
    try:
        whole = store.lease(id)
    except NotFoundError as error:
        _check_epoch(store, epoch, name)
        message = f"{name}: version {id[1]} is gone: a handle keeps no tensor; keep the tensor until it is opened"
        raise NotFoundError(message, field=name) from error
    if whole.name != name:
        whole.release()
        raise ConflictError(f"{name}: the handle is of another store", field=name)
    _check_epoch(store, epoch, name)
    return whole if view is None else whole.view(*view)


def _check_epoch(store: Store, epoch: int, name: str) -> None:
    if store.epoch != epoch:
        message = f"{name}: the handle is of another daemon than the one at {store.socket}, which may have been replaced"
        raise ConflictError(f"{message}: send it again", field=name)


def _connected(socket: str) -> Store:
    with _lock:
        store = _stores.get(socket)
        if store is None:
            store = _stores[socket] = Store.connect(socket)
        return store


def open_client(kind: Any, options: Dict[str, Any]) -> Any:
    """The client of a handle: not connected yet, with the same options."""
    return kind(**options)


def _forked() -> None:
    global _lock
    # Another thread of the parent may have held it. The stores connect again by themselves.
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
