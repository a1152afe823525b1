"""The state of a cluster."""

from __future__ import annotations

from typing import Any, Dict

import ray

from .peers import ANSWER_TIMEOUT, running_agent


def status() -> Dict[str, Dict[str, Any]]:
    """For each living node: the ``socket`` of its daemon, the tensors that its agent has ``kept`` for handles, the ``copies`` of
    other nodes' tensors, the number of tensors and files that it has ``pulled``, the ``sent_bytes``, the ``functions`` that
    other nodes find there, those that are ``running`` for other nodes, the ``names`` under which it has copied other nodes'
    tensors, and the ``models`` whose copies it was asked for since its agent started.

    A node without an agent has none of these, and one that does not answer within 4.5 s has ``error``.
    """
    found: Dict[str, Dict[str, Any]] = {}
    for node in ray.nodes():
        if node["Alive"]:
            found[node["NodeID"]] = _of(node["NodeID"])
    return found


def _of(node: str) -> Dict[str, Any]:
    try:
        agent = running_agent(node)
    except ValueError:
        return {}
    try:
        return ray.get(agent.counts.remote(), timeout=ANSWER_TIMEOUT)  # type: ignore[no-any-return]
    except ray.exceptions.RayError as error:
        # Also that of a node that ends just now.
        return {"error": str(error)}
