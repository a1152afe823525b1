"""From which nodes a node copies a tensor: trees of the nodes that have or receive one. No Ray, sockets or stores."""

from __future__ import annotations

import threading
from typing import Collection, Dict, Generic, Iterator, List, Optional, Set, Tuple, TypeVar

#: The children of a node, and of the origin, at most.
FANOUT = 2
#: The first nodes form a chain, in which each link sends one copy. From this depth on, nodes join where the depth is least.
CHAIN_DEPTH = 8
#: The ancestors in the answer to a node, in addition to the origin: its parent and the parent's parent.
ANCESTORS = 2

#: A tensor, and an address.
_K = TypeVar("_K")
_A = TypeVar("_A")


class Tree:
    """The nodes that have or receive copies of one tensor. The root is its origin, which is not a member."""

    def __init__(self, fanout: int = FANOUT, chain_depth: int = CHAIN_DEPTH) -> None:
        self._fanout, self._chain_depth = fanout, chain_depth
        #: The parent of each member, None for the origin.
        self._parents: Dict[str, Optional[str]] = {}

    def __len__(self) -> int:
        return len(self._parents)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parents)

    def ancestors(self, node: str) -> List[str]:
        """The parent of a member, the parent's parent, and so on, without the origin."""
        found: List[str] = []
        parent = self._parents[node]
        while parent is not None:
            found.append(parent)
            parent = self._parents[parent]
        return found

    def join(self, node: str) -> None:
        """Adds a node below a member or the origin. A member keeps its place."""
        if node not in self._parents:
            self._parents[node] = self._place()

    def leave(self, node: str) -> None:
        """Removes a node. Its children become children of its parent."""
        parent = self._parents.pop(node)
        for child, former in self._parents.items():
            if former == node:
                self._parents[child] = parent

    def _place(self) -> Optional[str]:
        """The parent of the next member, None for the origin."""
        children: Dict[Optional[str], int] = {}
        for parent in self._parents.values():
            children[parent] = children.get(parent, 0) + 1
        best: Tuple[Tuple[bool, int, int], Optional[str]] = ((True, 1 << 30, 0), None)
        for node in [None, *self._parents]:
            count = children.get(node, 0)
            if count < self._fanout:
                depth = 0 if node is None else 1 + len(self.ancestors(node))
                is_deep = depth >= self._chain_depth
                rank = (is_deep, depth if is_deep else count, depth)
                # Of equal ones the oldest.
                if rank < best[0]:
                    best = (rank, node)
        return best[1]


class Trees(Generic[_K, _A]):
    """The trees of the tensors of one origin. A member has an address, and the tokens with which it asked for the tensor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trees: Dict[_K, Tree] = {}
        self._addresses: Dict[Tuple[_K, str], _A] = {}
        self._tokens: Dict[Tuple[_K, str], Set[bytes]] = {}
        #: The tensor of each token.
        self._tensors: Dict[bytes, _K] = {}

    def join(self, tensor: _K, token: bytes, node: str, address: _A) -> List[_A]:
        """Adds a node. Returns the addresses of its nearest ancestors."""
        with self._lock:
            tree = self._trees.setdefault(tensor, Tree())
            tree.join(node)
            self._tensors[token] = tensor
            self._tokens.setdefault((tensor, node), set()).add(token)
            self._addresses[tensor, node] = address
            return [self._addresses[tensor, one] for one in tree.ancestors(node)[:ANCESTORS]]

    def leave(self, token: bytes, node: str) -> None:
        """The copy that the node wanted with this token did not succeed."""
        with self._lock:
            if token in self._tensors:
                self._remove(self._tensors[token], node, {token})

    def end(self, token: bytes) -> None:
        """The token has ended: a node without another one has no copy any more."""
        with self._lock:
            tensor = self._tensors.pop(token, None)
            if tensor is not None:
                for node in list(self._trees.get(tensor, ())):
                    self._remove(tensor, node, {token})

    def retain(self, nodes: Collection[str]) -> None:
        """Removes all other nodes: they have ended."""
        with self._lock:
            for tensor, node in list(self._tokens):
                if node not in nodes:
                    self._remove(tensor, node, set(self._tokens[tensor, node]))

    def nodes(self) -> Set[str]:
        """All nodes that have or receive a copy."""
        with self._lock:
            return {node for _, node in self._tokens}

    def _remove(self, tensor: _K, node: str, tokens: Set[bytes]) -> None:
        left = self._tokens.get((tensor, node))
        if left is None:
            return
        left -= tokens
        if left:
            return
        del self._tokens[tensor, node], self._addresses[tensor, node]
        tree = self._trees[tensor]
        tree.leave(node)
        if not len(tree):
            del self._trees[tensor]
