"""Tensors and models by name: the agent's part."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from .._native import Store, Tensor, TensorBuilder, content_hash, read_manifest
from ..errors import ConflictError, CotensorError, IoError, NotFoundError, RefusedError, UnsupportedError
from .alone import Alone
from .handle import OWN_PREFIX, Id, is_used, spec_of
from .models import Copies, Described, sources
from .peers import answer_of, answers, others, unanswered, with_agents
from .pulls import Pulls, TensorTarget

#: The tensor with the list of the copies, for an agent that is started again beside its daemon.
_LIST = f"{OWN_PREFIX}copies"


def described(node: str, tensor: Tensor, origin: Optional[Tuple[str, Id]] = None) -> Described:
    """What another node needs for a copy. ``origin`` is that of a tensor that is a copy itself."""
    spec = spec_of(tensor)
    # In one order of keys.
    metadata = json.dumps(spec.metadata or {}, sort_keys=True)
    parts = [tensor.name, repr((spec.shape, spec.dtype, spec.kind, spec.members)), metadata]
    with contextlib.suppress(CotensorError):
        # A model: the header has its parameters and its origin.
        data = read_manifest(tensor)[4]
        parts.append(tensor.view(0, "uint8", (data,)).tobytes().hex())
    fingerprint = content_hash("cotensor.ray: name", *parts)
    return Described(node, tensor.name, tensor.id, spec, fingerprint, origin or (node, tensor.id))


def _read_list(store: Store) -> Tuple[Copies, Optional[Tensor]]:
    """The copies that a former life of the agent has made, and the list of them."""
    try:
        listed = store.get(_LIST)
    except NotFoundError:
        return Copies(), None
    try:
        return Copies.of(json.loads(listed.tobytes())), listed
    except (ValueError, TypeError):
        return Copies(), listed


class _Replaced(Exception):
    """This node has published a tensor of its own meanwhile."""


class _Target(TensorTarget):
    """Memory that ``publish`` publishes."""

    def __init__(self, builder: TensorBuilder, publish: Callable[[TensorBuilder], Tensor]) -> None:
        super().__init__(builder)
        self._publish = publish

    def publish(self) -> Tensor:
        """See :class:`~cotensor.ray.pulls.Target`."""
        return self._publish(self._builder)


class Named:
    """Finds names on other nodes, and copies their tensors here under the same names, once for all processes.

    ``start`` waits for the agents of nodes that do not answer, if they are starting, and returns the nodes that have one then: an
    agent that is started again has the tensors of its daemon.
    """

    def __init__(self, node: str, store: Store, pulls: Pulls, start: Callable[[Sequence[str]], List[str]]) -> None:
        self._node, self._store, self._pulls, self._start = node, store, pulls, start
        #: Leased: without the list, the next life of this agent would take all copies for tensors that this node has published.
        self._copies, self._list = _read_list(store)
        self._list_lock = threading.Lock()
        #: The entries of the list in the store.
        self._listed = self._copies.entries()
        for name in self._copies.expected():
            self._settle(name)
        self._try_to_write_list()
        #: For names that are looked for and copied.
        self._alone: Alone[str] = Alone(shared=IoError)
        #: For names whose copy is published and entered, or whose version is read and compared with the copy.
        self._versions: Alone[str] = Alone()

    def names(self) -> List[str]:
        """The names of the copies that other nodes' tensors have here."""
        return [name for name in self._copies.names() if self._current(name)[0] is not None]

    def describe(self, name: str) -> Optional[Described]:
        """The tensor of a name on this node."""
        try:
            with self._versions.with_key(name), self._store.get(name) as tensor:
                return described(self._node, tensor, self._copies.origin(name, tensor.id))
        except CotensorError:
            return None

    def newest(self, names: List[str]) -> Dict[str, Tuple[str, Id]]:
        """The publishers and versions of those of the names that this node has."""
        found = {}
        for name in names:
            id_, origin = self._current(name)
            if id_ is not None:
                found[name] = origin or (self._node, id_)
        return found

    def bring(self, name: str) -> None:
        """Copies a tensor of another node here, unless this node has the name.

        Raises :class:`NotFoundError` if no node has it, :class:`ConflictError` if two nodes have different ones, and
        :class:`IoError` if no node that has it sends it.
        """
        with self._alone.with_key(name):
            if self._current(name)[0] is None:
                self._bring(name, self._sources(name), None)

    def update(self) -> None:
        """Copies newer versions of the copies that are in use, and frees unused copies of older ones."""
        for name in self._copies.expected():
            with self._versions.with_key(name):
                self._settle(name)
        for node, copied in self._copies.by_node().items():
            newest: Dict[str, Tuple[str, Id]] = {}
            # An agent of another version keeps no name of another node from its newer version.
            with contextlib.suppress(UnsupportedError):
                newest = answer_of(node, "newest_of", sorted(copied)) or {}
            for name, source in copied.items():
                if name in newest and newest[name] != (node, source):
                    # One that does not come keeps no other name from its newer version.
                    with contextlib.suppress(CotensorError):
                        self._update(name, node)
        # Forgets the copies that were freed or replaced.
        self.names()
        self._try_to_write_list()

    def _write_list(self) -> None:
        """Keeps the list of the copies in the store, if it has changed. Raises :class:`OverBudgetError` without room for it."""
        with self._list_lock:
            entries = self._copies.entries()
            if entries == self._listed:
                return
            former = self._list
            if any(entries):
                text = json.dumps(entries).encode()
                target = TensorTarget(self._store.empty(_LIST, (len(text),), "uint8", keep=True))
                target.memory()[:] = text
                self._list = target.publish()
            else:
                self._store.remove(_LIST, missing_ok=True)
                self._list = None
            if former is not None:
                former.release()
            self._listed = entries

    def _try_to_write_list(self) -> None:
        """Without room, the next update tries again. The list has a new copy as an expected one."""
        with contextlib.suppress(CotensorError):
            self._write_list()

    def _update(self, name: str, node: str) -> None:
        # An older version is here, for processes that wait.
        with self._alone.with_key(name), contextlib.suppress(CotensorError):
            try:
                with self._store.get(name) as tensor:
                    former = tensor.id
                    if self._copies.origin(name, former) is None:
                        return
                    has_users = is_used(self._store, tensor)
            except NotFoundError:
                return
            if not has_users:
                # Not one that a process of this node has published meanwhile.
                self._store.remove(name, missing_ok=True, id=former)
                return
            found = answer_of(node, "describe", name)
            if found is not None and found.name == name:
                self._bring(name, [found], former)

    def _current(self, name: str) -> Tuple[Optional[Id], Optional[Tuple[str, Id]]]:
        """The version of a name on this node, and its origin if it is a copy. Forgets a copy that was freed or replaced."""
        with self._versions.with_key(name):
            found = None
            try:
                with self._store.get(name) as tensor:
                    found = tensor.id
            except NotFoundError:
                pass
            except CotensorError:
                # Not known now. The copy stays one.
                return None, None
            return found, self._copies.origin(name, found)

    def _publish(self, builder: TensorBuilder, source: Described, former: Optional[Id]) -> Tensor:
        """Publishes a copy in place of the version ``former`` of its name, or under a free name for ``None``.

        Raises :class:`_Replaced` if the name has another version, and :class:`OverBudgetError` without room for the list.
        """
        name = source.name
        with self._versions.with_key(name):
            # Before other processes see the copy: this process can be killed at any time. The origin is the publisher, also if
            # another copy was read: newer versions come from there.
            self._copies.expect(name, former, source.origin, source.fingerprint)
            try:
                self._write_list()
            except BaseException:
                self._copies.withdraw(name)
                raise
            try:
                # In one request: a process of this node may publish the name at any time.
                tensor = builder._publish_if(former)
            except ConflictError as error:
                self._copies.withdraw(name)
                raise _Replaced from error
            except BaseException:
                self._settle(name)
                raise
            self._copies.add(name, tensor.id, *source.origin)
            return tensor

    def _settle(self, name: str) -> None:
        """Finds out whether a copy was published: a former life of this agent, or an answer, has ended before that was known.
        If the store cannot tell, the next update asks again."""
        id_, fingerprint = None, ""
        try:
            with self._store.get(name) as tensor:
                id_, fingerprint = tensor.id, described(self._node, tensor).fingerprint
        except NotFoundError:
            pass
        except CotensorError:
            return
        self._copies.settle(name, id_, fingerprint)

    def _sources(self, name: str) -> List[Described]:
        # The names of handles are of one node. A node without an agent has no daemon.
        asked = [] if name.startswith(OWN_PREFIX) else with_agents(others(self._node))
        found = dict(answers(self._node, "describe", name, nodes=asked))
        silent = set(asked) - set(found)
        if silent and not any(found.values()):
            found = dict(answers(self._node, "describe", name, nodes=self._start(sorted(silent))))
            silent -= set(found)
        # An answer with another name would be published under that one.
        offers = [offer for offer in found.values() if offer and offer.name == name]
        if not offers:
            raise NotFoundError(f"no node has a tensor {name!r}{unanswered(silent)}", field="name")
        return sources(name, offers)

    def _bring(self, name: str, found: List[Described], former: Optional[Id]) -> None:
        """Copies from the first that sends it, in place of the version ``former``."""
        error: Optional[CotensorError] = None
        for source in found:
            try:
                tensor = self._copied(source, former)
            except (IoError, NotFoundError, RefusedError) as caught:
                # Its frames have the token.
                error = caught.with_traceback(None)
                continue
            if tensor is None:
                return
            tensor.release()
            self._try_to_write_list()
            return
        assert error is not None
        raise error

    def _copied(self, source: Described, former: Optional[Id]) -> Optional[Tensor]:
        """A copy under the same name. The other node keeps the tensor while this one has its token.

        None if this node has published one of its own meanwhile.
        """
        source.spec.check_device(f"{source.name} of node {source.node}")
        token = answer_of(source.node, "lend", source.id, source.name)
        if token is None:
            problem = "the node does not answer, or has freed the tensor"
            raise IoError(f"{source.name} of node {source.node}: {problem}", field=source.name)
        key = (source.node, source.id)

        def target() -> _Target:
            builder = source.spec.builder(self._store, source.name, keep=True)
            return _Target(builder, lambda builder: self._publish(builder, source, former))

        try:
            with self._pulls.arriving(key) as arrival:
                return self._pulls.receive(arrival, key, token.hex(), source.name, target)
        except _Replaced:
            return None
