"""Rules for tensors that other nodes find by name, such as models. No Ray, sockets or stores."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, NamedTuple, Optional, Protocol, Tuple, TypeVar

from ..errors import ConflictError
from .handle import Id, Spec


class Offer(Protocol):
    """What a node has under a name."""

    @property
    def node(self) -> str:
        """The node."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal models."""

    @property
    def is_copy(self) -> bool:
        """Whether an agent has copied it from another node."""

    @property
    def origin(self) -> Tuple[str, Tuple[Any, Any]]:
        """The publisher and the version there, equal for equal bytes. Of versions with the same first part, the newer one is
        larger. Others cannot be compared: the publisher was started again, or had removed the name."""


class Described(NamedTuple):
    """A tensor of a name on a node, for a copy under the same name on another one."""

    node: str
    name: str
    id: Id
    spec: Spec
    #: Of name and spec, but the producer, and of a model's manifest, which has its origin. Equal for equal models of nodes.
    fingerprint: str
    #: The node that has published it, and its id there. That of a copy is the one of what was copied.
    origin: Tuple[str, Id]

    @property
    def is_copy(self) -> bool:
        """See :class:`Offer`."""
        return self.origin != (self.node, self.id)


_O = TypeVar("_O", bound=Offer)


def sources(name: str, found: List[_O], what: str = "tensors") -> List[_O]:
    """Those from which a copy can come, in this order: what nodes have published, and copies of just that. If no publisher is
    among them, the copies of the newest version of each.

    Raises :class:`ConflictError` if two nodes have published different ``what`` under one name, or have copies of which the newer
    one is not known.
    """
    published = [each for each in found if not each.is_copy]
    newest: Dict[Tuple[str, Any], Any] = {}
    for publisher, (series, number) in (each.origin for each in published or found):
        newest[publisher, series] = max(number, newest.get((publisher, series), number))
    versions = {(publisher, (series, number)) for (publisher, series), number in newest.items()}
    current = [each for each in found if each.origin in versions]
    first, *_ = published or current
    known: Dict[str, _O] = {}
    for other in published or current:
        publisher, (series, _) = other.origin
        same = known.setdefault(publisher, other)
        if other.fingerprint != first.fingerprint or series != same.origin[1][0]:
            conflicting = first if other.fingerprint != first.fingerprint else same
            raise ConflictError(
                f"{name}: node {conflicting.node} and node {other.node} have {'published ' if published else ''}different {what} "
                "under this name: remove one, or use another name",
                field=name,
            )
    return published + [each for each in current if each.is_copy]


class _Copy(NamedTuple):
    id: Id
    node: str
    source: Id


class _Expected(NamedTuple):
    """A copy whose publication begins."""

    #: The version that it replaces.
    former: Optional[Id]
    node: str
    source: Id
    fingerprint: str


class Copies:
    """The copies that an agent has made under the names of other nodes' tensors, and those that it is publishing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: Dict[str, _Copy] = {}
        self._expected: Dict[str, _Expected] = {}

    @classmethod
    def of(cls, entries: Any) -> Copies:
        """Those that :meth:`entries` has given, also after JSON has turned ids into lists."""
        copies = cls()
        published, expected = entries
        for name, (id_, node, source) in published:
            copies.add(str(name), (id_[0], id_[1]), str(node), (source[0], source[1]))
        for name, (former, node, source, fingerprint) in expected:
            replaced = None if former is None else (former[0], former[1])
            copies.expect(str(name), replaced, (str(node), (source[0], source[1])), str(fingerprint))
        return copies

    def entries(self) -> Tuple[List[Any], List[Any]]:
        """All, in the order of names, as values of JSON: the published ones and the expected ones."""
        with self._lock:
            return sorted(self._copies.items()), sorted(self._expected.items())

    def expect(self, name: str, former: Optional[Id], origin: Tuple[str, Id], fingerprint: str) -> None:
        """A copy of a publisher's version will be published in place of the version ``former``, or under a free name."""
        with self._lock:
            self._expected[name] = _Expected(former, *origin, fingerprint)

    def expected(self) -> List[str]:
        """The names of the copies whose publication has begun, and has neither succeeded nor failed."""
        with self._lock:
            return sorted(self._expected)

    def settle(self, name: str, id_: Optional[Id], fingerprint: str) -> None:
        """The name has the version ``id_`` after a publication with an unknown outcome. Another version than before, of the
        fingerprint that was expected, is the copy."""
        with self._lock:
            expected = self._expected.pop(name, None)
            if expected is not None and id_ not in (None, expected.former) and fingerprint == expected.fingerprint:
                self._copies[name] = _Copy(id_, expected.node, expected.source)

    def withdraw(self, name: str) -> None:
        """The expected copy was not published."""
        with self._lock:
            self._expected.pop(name, None)

    def add(self, name: str, id_: Id, node: str, source: Id) -> None:
        """A copy of version ``source`` of a publisher has been published, as version ``id_``."""
        with self._lock:
            self._expected.pop(name, None)
            self._copies[name] = _Copy(id_, node, source)

    def origin(self, name: str, id_: Optional[Id]) -> Optional[Tuple[str, Id]]:
        """The node and the version there of which this version of a name is a copy. For another one, or for ``None``, the copy
        is not known any more."""
        with self._lock:
            known = self._copies.get(name)
            if known is not None and known.id != id_:
                del self._copies[name]
                return None
            return None if known is None else (known.node, known.source)

    def by_node(self) -> Dict[str, Dict[str, Id]]:
        """The versions that were copied, by their publishers and names."""
        found: Dict[str, Dict[str, Id]] = {}
        with self._lock:
            for name, copy in self._copies.items():
                found.setdefault(copy.node, {})[name] = copy.source
        return found

    def names(self) -> List[str]:
        """The names of the copies."""
        with self._lock:
            return sorted(self._copies)
