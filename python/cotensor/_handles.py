"""Handles: pickled tensors, stores and clients, for other processes of the same user.

The handle of a tensor has the tensor's name and version and the identity of its store. It holds no lease and no secret: a process
that opens a handle connects with its own credentials.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any, Dict, Optional, Tuple

from ._forks import renewed
from ._native import Store, Tensor, TensorBuilder
from .errors import ConflictError, InvalidError, NotFoundError

_lock = renewed(sys.modules[__name__], "_lock", threading.Lock)
#: The connections that open handles of tensors, one for each socket. In a forked child they connect again on first use.
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
    from multiprocessing.context import get_spawning_popen
    from multiprocessing.reduction import DupFd

    # Raises ConflictError where there is nothing to fill any more.
    fd = builder._fileno()
    # A process that is being started inherits the descriptor.
    memory = BuilderMemory(builder) if get_spawning_popen() is None else DupFd(fd)
    return open_builder, (memory, builder.name, str(builder.dtype), builder.shape)


class BuilderMemory:
    """The memory of an unpublished builder for one process that asks for it.

    A handle that is never opened keeps no descriptor and no memory, unlike multiprocessing's own ``DupFd``.
    """

    def __init__(self, builder: TensorBuilder) -> None:
        from multiprocessing import resource_sharer

        name, found = builder.name, weakref.ref(builder)
        self._id = resource_sharer._resource_sharer.register(  # type: ignore[attr-defined]
            lambda connection, pid: _send_memory(found(), name, connection, pid), lambda: None
        )

    def detach(self) -> int:
        """The descriptor, which the caller closes. Raises ConflictError where the builder is not open any more."""
        from multiprocessing import reduction, resource_sharer

        with resource_sharer._resource_sharer.get_connection(self._id) as connection:  # type: ignore[attr-defined]
            conflict = connection.recv()
            if conflict is not None:
                raise ConflictError(conflict)
            return reduction.recv_handle(connection)


def _send_memory(builder: Optional[TensorBuilder], name: str, connection: Any, pid: int) -> None:
    """Answers a process that opens a handle: with the descriptor, or with the reason why there is none."""
    from multiprocessing import reduction

    try:
        if builder is None:
            raise ConflictError(f"{name}: it was dropped without being published", field=name)
        fd = os.dup(builder._fileno())
    except Exception as error:
        connection.send(str(error))
        return
    try:
        # If it was published while it was duplicated, the number may be that of another file.
        builder._fileno()
    except ConflictError as error:
        os.close(fd)
        connection.send(str(error))
        return
    try:
        connection.send(None)
        reduction.send_handle(connection, fd, pid)
    finally:
        os.close(fd)


class EndedBuilder:
    """In place of a builder that was published or discarded before a worker opened its handle: every use of it raises
    :class:`ConflictError`. An error at opening would end the worker, and the caller of the pool would wait for ever.
    """

    def __init__(self, name: str, conflict: str) -> None:
        self.name = name
        self._conflict = conflict

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise ConflictError(self._conflict, field=self.name)

    __array__ = __dlpack__ = __dlpack_device__ = __enter__ = __exit__ = _refuse

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return self._refuse()

    def __repr__(self) -> str:
        return f"<TensorBuilder {self.name!r}: {self._conflict}>"


def open_builder(memory: Any, name: str, dtype: str, shape: Tuple[int, ...]) -> Any:
    """Opens the handle of a builder: a builder, or an :class:`EndedBuilder`.

    Raises :class:`ConflictError` where the process that sent it does not answer.
    """
    from multiprocessing import AuthenticationError

    try:
        return TensorBuilder._open(memory.detach(), name, dtype, shape)
    except ConflictError as error:
        return EndedBuilder(name, str(error))
    except (OSError, EOFError, AuthenticationError) as error:
        message = f"{name}: the process of the builder does not answer: send builders to workers of its own pools only, each by a"
        message += " pickle of its own"
        raise ConflictError(message, field=name) from error


def open_client(kind: Any, options: Dict[str, Any]) -> Any:
    """Opens the handle of a client: an unconnected client with the same options."""
    return kind(**options)
