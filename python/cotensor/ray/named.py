"""Tensors and models by name: the agent's part."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from typing import Any, Callable, Dict, List, Optional

from .._native import Store, Tensor, content_hash, read_manifest
from ..errors import CotensorError, IoError, NotFoundError
from .alone import Alone
from .handle import reduced
from .models import Copies, Described, Id, sources
from .peers import answer_of, answers
from .pulls import Sources, fill

#: Names of tensors in handles and of values of calls, which no other node looks for.
_OWN_PREFIX = "ray/"

#: Where a token's tensor is read, as ``ask`` of the agent returns it: node, token, asking node, name.
Ask = Callable[[str, str, str, str], Sources]


def described(node: str, tensor: Tensor, is_copy: bool) -> Described:
    """What another node needs for a copy."""
    members = []
    for name, member in tensor.members().items():
        # Without one, the member is all of the group.
        view = reduced(member)[4]
        members.append((name, view[0] if view else 0, str(member.dtype), member.shape))
    shape, dtype, kind, metadata = tensor.shape, str(tensor.dtype), tensor.kind, tensor.metadata
    # In one order of keys.
    parts = [tensor.name, repr((shape, dtype, kind, members)), json.dumps(metadata, sort_keys=True)]
    with contextlib.suppress(CotensorError):
        # A model: the header has its parameters and its origin.
        data = read_manifest(tensor)[4]
        parts.append(tensor.view(0, "uint8", (data,)).tobytes().hex())
    fingerprint = content_hash("cotensor.ray: name", *parts)
    return Described(
        node, tensor.name, tensor.id, shape, dtype, kind, tensor.producer, metadata, tuple(members), fingerprint, is_copy
    )


class Named:
    """Finds names on other nodes, and copies their tensors here under the same names, once for all processes.

    ``ask`` is the agent's.
    """

    def __init__(self, node: str, store: Store, ask: Ask) -> None:
        self._node, self._store, self._ask = node, store, ask
        #: Copies that have arrived.
        self.count = 0
        self._copies = Copies()
        self._lock = threading.Lock()
        #: For names that are looked for and copied.
        self._alone: Alone[str] = Alone()

    def names(self) -> List[str]:
        """The names of the copies that other nodes' tensors have here."""
        return [name for name in self._copies.names() if self._current(name) is not None]

    def describe(self, name: str) -> Optional[Described]:
        """The tensor of a name on this node."""
        try:
            with self._store.get(name) as tensor:
                return described(self._node, tensor, self._copies.is_copy(name, tensor.id))
        except CotensorError:
            return None

    def newest(self, names: List[str]) -> Dict[str, Id]:
        """The newest versions of those of the names that this node has."""
        found = {}
        for name in names:
            with contextlib.suppress(CotensorError), self._store.get(name) as tensor:
                found[name] = tensor.id
        return found

    def bring(self, name: str) -> None:
        """Copies a tensor of another node here, unless this node has the name.

        Raises :class:`NotFoundError` if no node has it, :class:`ConflictError` if two nodes have different ones, and
        :class:`IoError` if no node that has it sends it.
        """
        with self._alone.with_key(name):
            if self._current(name) is None:
                self._bring(name, self._sources(name), None)

    def update(self) -> None:
        """Copies newer versions of the copies that are in use, and frees unused copies of older ones."""
        for node, copied in self._copies.by_node().items():
            newest = answer_of(node, "newest_of", sorted(copied)) or {}
            for name, source in copied.items():
                if name in newest and tuple(newest[name]) != source:
                    self._update(name, node)

    def _update(self, name: str, node: str) -> None:
        with self._alone.with_key(name):
            try:
                with self._store.get(name) as tensor:
                    former = tensor.id
                    if not self._copies.is_copy(name, former):
                        return
                    is_used = sum(tensor.holders.values()) > 1
            except NotFoundError:
                return
            if not is_used:
                self._store.remove(name, missing_ok=True)
                return
            found = answer_of(node, "describe", name)
            if found is not None:
                self._bring(name, [found], former)

    def _current(self, name: str) -> Optional[Id]:
        """The version of a name on this node."""
        found = self.newest([name]).get(name)
        # Forgets a copy that was freed or replaced.
        self._copies.is_copy(name, found)
        return found

    def _sources(self, name: str) -> List[Described]:
        found = [] if name.startswith(_OWN_PREFIX) else [each for _, each in answers(self._node, "describe", name) if each]
        if not found:
            raise NotFoundError(f"no node has a tensor {name!r}", field="name")
        return sources(name, found)

    def _bring(self, name: str, found: List[Described], former: Optional[Id]) -> None:
        """Copies from the first that sends it, in place of the version ``former``."""
        error: Optional[CotensorError] = None
        for source in found:
            try:
                tensor = self._copied(source, former)
            except (IoError, NotFoundError) as caught:
                error = type(caught)(f"{name} of node {source.node}: {caught}", field=name)
                continue
            if tensor is None:
                return
            with tensor:
                self._copies.add(name, tensor.id, source.node, source.id)
            with self._lock:
                self.count += 1
            return
        assert error is not None
        raise error

    def _copied(self, source: Described, former: Optional[Id]) -> Optional[Tensor]:
        """A copy under the same name. The other node keeps the tensor while this one has its token.

        None if this node has published one of its own meanwhile.
        """
        token = answer_of(source.node, "lend", source.id, source.name)
        if token is None:
            raise IoError("the node does not answer, or has freed the tensor")
        [address] = self._ask(source.node, token.hex(), self._node, source.name).addresses
        options: Dict[str, Any] = {"kind": source.kind, "producer": source.producer, "metadata": source.metadata or None}
        if not source.members:
            with self._store.empty(source.name, source.shape, source.dtype, **options) as builder:
                fill(builder, [(address, token.binary())])
                if self._current(source.name) == former:
                    return builder.publish()
                builder.discard()
                return None
        # A group is made of arrays: its bytes come under another name first.
        with self._store.empty(f"{_OWN_PREFIX}{uuid.uuid4().hex}", source.shape, source.dtype, keep=False) as builder:
            fill(builder, [(address, token.binary())])
            with builder.publish() as whole:
                if self._current(source.name) != former:
                    return None
                members = {name: whole.view(offset, dtype, shape) for name, offset, dtype, shape in source.members}
                return self._store.put_group(source.name, members, **options)
