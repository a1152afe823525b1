"""The tensors that the agent of a node keeps, and the references for which it does. No Ray, sockets or stores."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Generic, Iterable, List, Optional, Protocol, Set, Tuple, TypeVar

from ..errors import NotFoundError

#: A tensor or a file of a node: the node, and the tensor's id there or :class:`~cotensor.ray.files.FileId`.
Key = Tuple[str, Tuple[Any, Any]]


class Leased(Protocol):
    """A leased tensor, or an open file."""

    @property
    def id(self) -> Tuple[Any, Any]:
        """The second part of its key."""

    def release(self) -> None:
        """Ends the lease."""


_L = TypeVar("_L", bound=Leased)


class Holdings(Generic[_L]):
    """Leases by tokens: a token is a reference that Ray counts, and a handle contains it.

    A node's own tensor has one lease for each token. A copy of another node's tensor is kept for all tokens with which it was
    asked for, until the other node reports the end of each. Then ``free`` frees it.
    """

    def __init__(self, free: Callable[[_L], None] = lambda copy: copy.release()) -> None:
        self._free = free
        self._lock = threading.Lock()
        #: Tokens that have not ended.
        self._live: Set[bytes] = set()
        self._own: Dict[bytes, _L] = {}
        #: Nodes that have copies of the tensor, by its token.
        self._nodes: Dict[bytes, Set[str]] = {}
        self._copies: Dict[Key, _L] = {}
        #: Tokens of copies, also of those that are on their way.
        self._wanted: Dict[Key, Set[bytes]] = {}

    def begin(self, tokens: Iterable[bytes]) -> None:
        """Tokens that this node's agent has made, and whose ends Ray reports to it."""
        with self._lock:
            self._live.update(tokens)

    def ended(self, tokens: Iterable[bytes]) -> List[bytes]:
        """Those that have ended, or are of a former agent."""
        with self._lock:
            return [token for token in tokens if token not in self._live]

    def keep(self, token: bytes, lease: _L) -> None:
        """Keeps a tensor until the end of the token. Raises :class:`NotFoundError` for an ended or unknown one."""
        with self._lock:
            is_live = token in self._live
            unused = self._own.get(token) if is_live else lease
            if is_live:
                self._own[token] = lease
        if unused is not None:
            unused.release()
        if not is_live:
            raise NotFoundError("the token of a handle has ended, or its agent was restarted")

    def serve(self, token: bytes, node: str) -> _L:
        """The tensor of a token, for a copy on another node. Raises :class:`NotFoundError` for a token that has ended."""
        with self._lock:
            lease = self._own.get(token)
            if lease is None:
                raise NotFoundError("the tensor was freed: no reference to it is left, or the node's agent was restarted")
            self._nodes.setdefault(token, set()).add(node)
            return lease

    def end(self, token: bytes) -> Set[str]:
        """The last reference has ended. Returns the nodes that have copies, to call :meth:`end_copies` there."""
        with self._lock:
            self._live.discard(token)
            lease, nodes = self._own.pop(token, None), self._nodes.pop(token, set())
        if lease is not None:
            lease.release()
        return nodes

    def want(self, key: Key, token: bytes) -> Tuple[bool, Optional[_L]]:
        """A copy is needed, for this token too. :meth:`end_copies` ends it, also before the copy is here.

        Returns whether the token is a new one, and the copy, if it is here.
        """
        with self._lock:
            tokens = self._wanted.setdefault(key, set())
            is_new = token not in tokens
            tokens.add(token)
            return is_new, self._copies.get(key)

    def copy(self, key: Key) -> Optional[_L]:
        """The copy, if it is here."""
        with self._lock:
            return self._copies.get(key)

    def add_copy(self, key: Key, lease: _L) -> None:
        """The copy has arrived. If all of its tokens have ended meanwhile, it is released."""
        with self._lock:
            # Without tokens, there is no former one.
            unused: Optional[_L] = lease
            if key in self._wanted:
                unused, self._copies[key] = self._copies.get(key), lease
        if unused is not None:
            self._free(unused)

    def end_copies(self, token: bytes) -> None:
        """The token has ended on its node. Copies without another one are released."""
        ended: List[_L] = []
        with self._lock:
            for key, tokens in list(self._wanted.items()):
                tokens.discard(token)
                if not tokens:
                    del self._wanted[key]
                    ended += [self._copies.pop(key)] if key in self._copies else []
        for lease in ended:
            self._free(lease)

    def orphan(self, node: str) -> List[Tuple[Key, _L]]:
        """The node has ended, and reports no ends of tokens any more. Returns the copies of its tensors, which are not kept any
        more. Those that are on their way stay wanted."""
        with self._lock:
            copies = [(key, copy) for key, copy in self._copies.items() if key[0] == node]
            for key, _ in copies:
                del self._copies[key], self._wanted[key]
            return copies

    def wanted(self) -> Dict[str, List[bytes]]:
        """The tokens of copies, by their nodes."""
        wanted: Dict[str, List[bytes]] = {}
        with self._lock:
            for (node, _), tokens in self._wanted.items():
                wanted.setdefault(node, []).extend(tokens)
        return wanted

    def counts(self) -> Dict[str, int]:
        """The numbers of tensors and files that are kept, and of copies."""
        with self._lock:
            return {"kept": len(self._own), "copies": len(self._copies)}
