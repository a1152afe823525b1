"""Copies of other nodes' tensors and files, and what other nodes read of them meanwhile. No Ray."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Sequence, TypeVar

from .._native import Tensor, TensorBuilder
from ..errors import ConflictError, IoError, NotFoundError, OverBudgetError, RefusedError
from .alone import Alone, Places
from .arrival import Arrival, Readable, Whole
from .holdings import Holdings, Key
from .transfer import Address, SilentError, Source, fetch, ranges_of

#: The names of copies begin with it. A token is 28 bytes of its own.
_COPY = b"copy/"
#: Copies that come from one node at a time. A slow node delays no copies from others.
_FROM_ONE_NODE = 8
#: The time for an error when no node sends a tensor, and the least time for other nodes to answer whether they have a copy, and
#: for the first byte of one, in seconds.
_ERROR_SECONDS, _OTHERS_SECONDS_MIN = 5.0, 0.5

_P = TypeVar("_P", covariant=True)


class Origins(Protocol):
    """The agents of other nodes."""

    def join(self, node: str, token: str, name: str) -> List[Address]:
        """Where this node reads a tensor or a file: nodes that have or receive a copy, the nearest first, and last its own node.

        Raises errors that name it.
        """

    def leave(self, node: str, token: str) -> None:
        """The copy did not succeed."""

    def copies(self, key: Key, timeout: float) -> Iterator[Address]:
        """The nodes that have a copy of a tensor whose own node does not answer, in the order of their answers."""

    def orphan(self, key: Key) -> Optional[Tensor]:
        """The copy here of a tensor whose node has ended. The caller has the lease."""


class Target(Protocol[_P]):
    """The memory of a copy."""

    @property
    def nbytes(self) -> int:
        """Its bytes."""

    def fileno(self) -> int:
        """The descriptor of the memory."""

    def memory(self) -> memoryview:
        """The memory, to write the bytes there."""

    def populate(self, start: int, end: int) -> None:
        """The bytes from ``start`` to ``end`` are about to be written there. Several threads call it."""

    def publish(self) -> _P:
        """All bytes are here."""

    def discard(self) -> None:
        """The copy has failed. Also called after :meth:`publish` has."""


class TensorTarget:
    """A tensor that a builder makes."""

    def __init__(self, builder: TensorBuilder) -> None:
        self._builder = builder

    @property
    def nbytes(self) -> int:
        """See :class:`Target`."""
        return self._builder.nbytes

    def fileno(self) -> int:
        """See :class:`Target`."""
        return self._builder._fileno()

    def memory(self) -> memoryview:
        """See :class:`Target`."""
        return memoryview((ctypes.c_ubyte * self.nbytes).from_address(self._builder._address)).cast("B")

    def populate(self, start: int, end: int) -> None:
        """See :class:`Target`."""
        try:
            self._builder._populate(start, end)
        except IoError as error:
            # No other source has more memory for it.
            raise OverBudgetError(str(error)) from error

    def publish(self) -> Tensor:
        """See :class:`Target`."""
        return self._builder.publish()

    def discard(self) -> None:
        """See :class:`Target`."""
        # Not if it was published.
        with contextlib.suppress(ConflictError):
            self._builder.discard()


def received(
    target: Target[_P],
    sources: Sequence[Source],
    name: str,
    node: str,
    arrival: Optional[Arrival] = None,
    silence: Optional[float] = None,
) -> _P:
    """Copies a tensor or a file of a node into its target. Other nodes read it as ``arrival``. Errors name it and its node. For
    ``silence`` see :func:`~cotensor.ray.transfer.fetch`."""
    try:
        if target.nbytes:
            if arrival is not None:
                arrival.begin(target.fileno(), ranges_of(target.nbytes))
            with target.memory() as memory:
                fetch(sources, memory, None if arrival is None else arrival.advance, target.populate, silence)
        return target.publish()
    except BaseException as error:
        target.discard()
        if isinstance(error, (IoError, NotFoundError, RefusedError)):
            raise type(error)(f"{name} of node {node}: {error}", field=name) from error
        raise


def sources_of(addresses: Sequence[Address], key: Key, token: str) -> List[Source]:
    """What a node reads at each address: a copy there, and at the last one the tensor or file itself."""
    *others, origin = addresses
    return [*((address, _name_of(key)) for address in others), (origin, bytes.fromhex(token))]


class Pulls:
    """The copies of a node's agent."""

    def __init__(self, holdings: Holdings[Any], origins: Origins) -> None:
        self._holdings, self._origins = holdings, origins
        self._lock = threading.Lock()
        self._alone: Alone[Key] = Alone(shared=IoError)
        self._places: Places[str] = Places(_FROM_ONE_NODE, shared=SilentError)
        #: Those of a key that other nodes are sent to, by the key as text. The same tensor can come twice, under two names.
        self._arrivals: Dict[str, List[Arrival]] = {}
        #: Copies that have arrived.
        self.count = 0

    def pull(self, key: Key, token: str, name: str, target: Callable[[], Target[Tensor]]) -> Tensor:
        """Copies a tensor of another node, unless it is here, and keeps it until its tokens end."""
        with self._alone.with_key(key):
            is_new, copy = self._holdings.want(key, bytes.fromhex(token))
            if copy is not None and not is_new:
                return copy  # type: ignore[no-any-return]
            try:
                return self._pull(key, token, name, target, copy)
            except BaseException:
                self._holdings.end_copies(bytes.fromhex(token))
                raise

    def _pull(self, key: Key, token: str, name: str, target: Callable[[], Target[Tensor]], copy: Optional[Tensor]) -> Tensor:
        """``copy``, or a new one for None, for a token with which it was not wanted before."""
        began = time.monotonic()
        try:
            with self.arriving(key) as arrival:
                # Also when the copy is here: the other node reports the end of tokens that it was asked for.
                sources = sources_of(self._join(key, token, name), key, token)
                if copy is None:
                    copy = self._add(arrival, sources, key, token, name, target)
        except (IoError, RefusedError):
            if copy is None:
                copy = self._without_origin(key, token, name, target, began)
            if copy is None:
                raise
        return copy

    def _without_origin(
        self, key: Key, token: str, name: str, target: Callable[[], Target[Tensor]], began: float
    ) -> Optional[Tensor]:
        """The copy that this node or another one has of a tensor whose own node does not answer."""
        orphan = self._origins.orphan(key)
        if orphan is not None:
            self._holdings.add_copy(key, orphan)
            return orphan
        left = max(_ERROR_SECONDS - (time.monotonic() - began), _OTHERS_SECONDS_MIN)
        until = time.monotonic() + left
        for address in self._origins.copies(key, left):
            # A copy can end after the answer, and so can its node.
            with contextlib.suppress(IoError, NotFoundError, RefusedError), self.arriving(key) as arrival:
                silence = max(until - time.monotonic(), _OTHERS_SECONDS_MIN)
                return self._add(arrival, [(address, _name_of(key))], key, token, name, target, silence)
            if time.monotonic() > until:
                break
        return None

    def _add(
        self,
        arrival: Arrival,
        sources: List[Source],
        key: Key,
        token: str,
        name: str,
        target: Callable[[], Target[Tensor]],
        silence: Optional[float] = None,
    ) -> Tensor:
        copy = self._receive(arrival, sources, key, token, name, target, silence)
        self._holdings.add_copy(key, copy)
        return copy

    @contextlib.contextmanager
    def arriving(self, key: Key) -> Iterator[Arrival]:
        """A block in which other nodes read what arrives here, and what has arrived."""
        arrival, text = Arrival(), _text(key)
        with self._lock:
            # Before other nodes are sent here.
            self._arrivals.setdefault(text, []).append(arrival)
        try:
            yield arrival
        finally:
            with self._lock:
                self._arrivals[text].remove(arrival)
                if not self._arrivals[text]:
                    del self._arrivals[text]
            arrival.end()

    def receive(self, arrival: Arrival, key: Key, token: str, name: str, target: Callable[[], Target[_P]]) -> _P:
        """Copies a tensor or a file of another node, in a block of :meth:`arriving`. The caller keeps it."""
        return self._receive(arrival, sources_of(self._join(key, token, name), key, token), key, token, name, target)

    def find(self, name: bytes) -> Optional[Readable]:
        """The copy that another node names, also one that is on its way. None for what is not a name of a copy.

        Raises :class:`NotFoundError` for a copy that is not here.
        """
        if not name.startswith(_COPY):
            return None
        text = name[len(_COPY) :].decode(errors="replace")
        with self._lock:
            arrival = next(iter(self._arrivals.get(text, ())), None)
        key = _tensor_of(text)
        copy = self._holdings.copy(key)
        if copy is None and arrival is None:
            copy = self._origins.orphan(key)
        if copy is not None:
            return whole(copy)
        if arrival is None:
            raise NotFoundError("no copy is here")
        return arrival

    def _join(self, key: Key, token: str, name: str) -> List[Address]:
        try:
            return self._origins.join(key[0], token, name)
        except BaseException:
            self._origins.leave(key[0], token)
            raise

    def _receive(
        self,
        arrival: Arrival,
        sources: List[Source],
        key: Key,
        token: str,
        name: str,
        target: Callable[[], Target[_P]],
        silence: Optional[float] = None,
    ) -> _P:
        node, _ = key
        try:
            with self._places.with_key(node):
                copy = received(target(), sources, name, node, arrival, silence)
            arrival.end()
        except BaseException as error:
            self._origins.leave(node, token)
            if isinstance(error, SilentError):
                # Other processes do not know its class. It is that of another tensor if this one has waited for its place.
                what = f"{name} of node {node}: "
                raise IoError(what + str(error).replace(what, "", 1), field=name) from error
            raise
        with self._lock:
            self.count += 1
        return copy


def _name_of(key: Key) -> bytes:
    """The name of a copy in a request."""
    return _COPY + _text(key).encode()


def _text(key: Key) -> str:
    node, (first, second) = key
    return f"{node}/{first}/{second}"


def _tensor_of(text: str) -> Key:
    """The key of a tensor. That of a file, of which no copy is in the holdings, is one that no tensor has."""
    node, _, numbers = text.partition("/")
    parts = [int(part) for part in numbers.split("/") if part.isdecimal()]
    return node, (parts[0], parts[1]) if len(parts) == 2 else (0, 0)


def whole(tensor: Tensor) -> Whole:
    """The bytes of a tensor. Raises :class:`NotFoundError` for one that was released meanwhile."""
    try:
        # Not every dtype has a buffer.
        return Whole(tensor.view(0, "uint8", (tensor.nbytes,)))
    except ConflictError as error:
        raise NotFoundError(str(error)) from error
