"""Handles: pickled tensors, stores and clients, for other processes of the same user.

The handle of a tensor has the tensor's name and version and the identity of its store. It holds no lease and no secret: a process
that opens a handle connects with its own credentials.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Dict, Optional, Tuple

from ._native import Store, Tensor, TensorBuilder
from .errors import ConflictError, InvalidError, NotFoundError

_lock = threading.Lock()
#: The connections that open handles of tensors, one for each socket.
_stores: Dict[str, Store] = {}

#: Offset in bytes, dtype, shape and strides of a view.
View = Tuple[int, str, Tuple[int, ...], Tuple[int, ...]]


def open_store(socket: str, client: str) -> Store:
    """Opens the handle of a store, with a new connection."""
    return Store.connect(socket, client=client)


def open_tensor(
    socket: str, epoch: int, name: str, id: Tuple[int, int], view: Optional[View]  # noqa: A002
) -> Tensor:
    """Opens the handle of a tensor, and leases the tensor.

    Raises :class:`NotFoundError` if that version was freed, :class:`NoDaemonError` if no daemon answers, :class:`ConflictError`
    if another daemon answers.
    """
    if not isinstance(name, str):
        raise InvalidError(f"the name in a handle is a string, not {type(name).__name__}", field="name")
    store = _connected(socket)
    try:
        whole = store.lease(id)
    except NotFoundError as error:
        _check_epoch(store, epoch, name)
        message = f"{name}: version {id[1]} was freed: a handle holds no lease; keep the tensor until the handle is opened"
        raise NotFoundError(message, field=name) from error
    if whole.name != name:
        whole.release()
        raise ConflictError(f"{name}: the handle belongs to another store", field=name)
    _check_epoch(store, epoch, name)
    return whole if view is None else whole.view(*view)


def _check_epoch(store: Store, epoch: int, name: str) -> None:
    if store.epoch != epoch:
        message = f"{name}: the handle belongs to another daemon than the one at {store.socket}"
        raise ConflictError(f"{message}: send it again", field=name)


def _connected(socket: str) -> Store:
    with _lock:
        store = _stores.get(socket)
        if store is None:
            store = _stores[socket] = Store.connect(socket)
        return store


def reduce_builder(builder: TensorBuilder) -> Tuple[Any, Tuple[Any, ...]]:
    """The handle of a builder for a worker of this process's pools: its memory travels as a descriptor."""
    from multiprocessing.reduction import DupFd

    return open_builder, (DupFd(builder._fileno()), builder.name, str(builder.dtype), builder.shape)


def open_builder(memory: Any, name: str, dtype: str, shape: Tuple[int, ...]) -> TensorBuilder:
    """Opens the handle of a builder.

    Raises :class:`ConflictError` where the process that sent it does not answer, or published it meanwhile.
    """
    from multiprocessing import AuthenticationError

    try:
        fd = memory.detach()
    except (OSError, EOFError, AuthenticationError) as error:
        message = f"{name}: the process of the builder does not answer: send builders to workers of its own pools only"
        raise ConflictError(message, field=name) from error
    return TensorBuilder._open(fd, name, dtype, shape)


def open_client(kind: Any, options: Dict[str, Any]) -> Any:
    """Opens the handle of a client: an unconnected client with the same options."""
    return kind(**options)


def _forked() -> None:
    global _lock
    # Another thread of the parent may have held the lock. The stores connect again on first use.
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
