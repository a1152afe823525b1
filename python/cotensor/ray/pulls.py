"""Copies of other nodes' tensors, and what other nodes read of them meanwhile. No Ray."""

from __future__ import annotations

import ctypes
import threading
from typing import Callable, Dict, List, NamedTuple, Optional, Protocol, Sequence

from .._native import Store, Tensor, TensorBuilder
from ..errors import ConflictError, IoError, NotFoundError
from .alone import Alone
from .arrival import Arrival, Readable, Whole
from .holdings import Holdings, Key
from .transfer import Address, Source, fetch, ranges_of

#: The names of copies begin with it. A token is 28 bytes of its own.
_COPY = b"copy/"


class Sources(NamedTuple):
    """Where a node reads a tensor of another one."""

    #: A number of the agent that answered. The next agent of the node has another one, and may give ids again.
    life: str
    #: Nodes that have or receive a copy, the nearest first, and last the tensor's own node.
    addresses: List[Address]


class Origins(Protocol):
    """The agents of other nodes."""

    def join(self, node: str, token: str, name: str) -> Sources:
        """Where this node reads a tensor. Raises errors that name it."""

    def leave(self, node: str, token: str) -> None:
        """The copy did not succeed."""


def copied(
    store: Store,
    sources: Sources,
    key: Key,
    token: str,
    shape: Sequence[int],
    dtype: str,
    name: str,
    arrival: Optional[Arrival] = None,
) -> Tensor:
    """A copy of another node's tensor in a store. Other nodes read it as ``arrival``. Errors name the tensor and its node."""
    node, id_ = key
    with store.empty(f"ray/{node[:16]}/{id_[0]}", tuple(shape), dtype, keep=False) as builder:
        if builder.nbytes:
            if arrival is not None:
                arrival.begin(builder._fileno(), ranges_of(builder.nbytes))
            try:
                fill(builder, _named(sources, key, token), None if arrival is None else arrival.advance)
            except (IoError, NotFoundError) as error:
                raise type(error)(f"{name} of node {node}: {error}", field=name) from error
        return builder.publish()


def fill(builder: TensorBuilder, sources: Sequence[Source], advance: Optional[Callable[[int, int], None]] = None) -> None:
    """Fills the memory of a builder by :func:`fetch`."""
    if builder.nbytes:
        memory = (ctypes.c_ubyte * builder.nbytes).from_address(builder.data_ptr)
        fetch(sources, memoryview(memory).cast("B"), advance)


def _named(sources: Sources, key: Key, token: str) -> List[Source]:
    *others, origin = sources.addresses
    name = _COPY + f"{key[0]}/{key[1][0]}/{key[1][1]}/{sources.life}".encode()
    return [*((address, name) for address in others), (origin, bytes.fromhex(token))]


class Pulls:
    """The copies of a node's agent."""

    def __init__(self, store: Store, holdings: Holdings[Tensor], origins: Origins) -> None:
        self._store, self._holdings, self._origins = store, holdings, origins
        self._lock = threading.Lock()
        self._alone: Alone[Key] = Alone()
        self._arrivals: Dict[Key, Arrival] = {}
        #: Copies that have arrived.
        self.count = 0

    def pull(self, key: Key, token: str, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """Copies a tensor of another node, unless it is here."""
        with self._alone.with_key(key):
            is_new, copy = self._holdings.want(key, bytes.fromhex(token))
            if copy is not None and not is_new:
                return copy
            try:
                return self._pull(key, token, name, shape, dtype)
            except BaseException:
                self._holdings.end_copies(bytes.fromhex(token))
                self._origins.leave(key[0], token)
                raise

    def find(self, name: bytes) -> Optional[Readable]:
        """The copy that another node names, also one that is on its way. None for what is no name of a copy.

        Raises :class:`NotFoundError` for a copy that is not here.
        """
        if not name.startswith(_COPY):
            return None
        node, name_id, version, life = name[len(_COPY) :].decode().split("/")
        key = (node, (int(name_id), int(version)))
        with self._lock:
            arrival = self._arrivals.get(key)
        copy = self._holdings.copy(key, life)
        if copy is not None:
            return whole(copy)
        if arrival is None:
            raise NotFoundError("no copy is here")
        return arrival.reader(life)

    def _pull(self, key: Key, token: str, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        arrival = Arrival()
        with self._lock:
            # Before other nodes are sent here.
            self._arrivals[key] = arrival
        try:
            # Also when the copy is here: the other node reports the end of tokens that it was asked for.
            sources = self._origins.join(key[0], token, name)
            copy = self._holdings.copy(key, sources.life)
            if copy is None:
                arrival.life = sources.life
                copy = copied(self._store, sources, key, token, shape, dtype, name, arrival)
                with self._lock:
                    self.count += 1
                self._holdings.add_copy(key, sources.life, bytes.fromhex(token), copy)
            return copy
        finally:
            with self._lock:
                del self._arrivals[key]
            arrival.end()


def whole(tensor: Tensor) -> Whole:
    """The bytes of a tensor. Raises :class:`NotFoundError` for one that was released meanwhile."""
    try:
        # Not every dtype has a buffer.
        return Whole(tensor.view(0, "uint8", (tensor.nbytes,)))
    except ConflictError as error:
        raise NotFoundError(str(error)) from error
