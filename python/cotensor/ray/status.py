"""The state of a cluster."""

from __future__ import annotations

from typing import Any, Dict

from ..errors import UnsupportedError
from .peers import ANSWER_TIMEOUT, answers, living, with_agents


def status() -> Dict[str, Dict[str, Any]]:
    """For each living node: the ``socket`` of its daemon, the tensors that its agent has ``kept`` for handles, the ``copies`` of
    other nodes' tensors, the number of tensors and files that it has ``pulled``, the ``sent_bytes``, the ``functions`` that
    other nodes find there, those that are ``running`` for other nodes, the ``names`` under which it has copied other nodes'
    tensors, and the ``models`` whose copies it was asked for since its agent started.

    A node without an agent has none of these, and one that does not answer within 4.5 s, or has another version of
    Cotensor, has ``error``. Raises :class:`IoError` if the head of the cluster does not answer.
    """
    found: Dict[str, Dict[str, Any]] = {}
    asked = []
    for node in living():
        found[node] = {}
        try:
            if with_agents([node]):
                asked.append(node)
                # Also that of a node that ends just now.
                found[node] = {"error": f"the agent does not answer within {ANSWER_TIMEOUT} s"}
        except UnsupportedError as error:
            found[node] = {"error": str(error)}
    found.update(answers("", "counts", nodes=asked))
    return found
