"""The agents of other nodes, as the copies of a node ask them."""

from __future__ import annotations

import contextlib
from typing import Callable, Iterator, List, Optional

from .._native import Tensor
from ..errors import IoError
from .holdings import Key
from .orphans import Orphans
from .peers import answers, ask, others, tell
from .transfer import Address


class OtherAgents:
    """See :class:`~cotensor.ray.pulls.Origins`. ``address`` returns where other nodes read what ``node`` has."""

    def __init__(self, node: str, address: Callable[[], Address], orphans: Orphans) -> None:
        self._node, self._address, self._orphans = node, address, orphans

    def join(self, node: str, token: str, name: str) -> List[Address]:
        """Where a tensor or file of another node is read, which sends others here then."""
        return ask(node, token, self._node, name, self._address())

    def leave(self, node: str, token: str) -> None:
        """The copy did not succeed."""
        tell(node, "unserve", token, self._node)

    def copies(self, key: Key, timeout: float) -> Iterator[Address]:
        """The nodes that answer that they have a copy of a tensor."""
        nodes: List[str] = []
        with contextlib.suppress(IoError):
            nodes = [node for node in others(self._node, timeout) if node != key[0]]
        for _, address in answers(self._node, "copy_at", *key, timeout=timeout, nodes=nodes):
            if address is not None:
                yield address

    def orphan(self, key: Key) -> Optional[Tensor]:
        """The copy here of a tensor whose node has ended."""
        return self._orphans.lease(key)
