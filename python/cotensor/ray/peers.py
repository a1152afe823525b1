"""The agents of other nodes."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Iterable, Iterator, List, Optional, Tuple, cast

import ray

from ..errors import CotensorError, IoError, NotFoundError
from .transfer import Address

#: The namespace of agents.
NAMESPACE = "cotensor"
#: The time for another node's agent to answer, in seconds.
ANSWER_TIMEOUT = 4.5


def running_agent(node: str) -> Any:
    """The agent of a node, if it has one. Raises :class:`ValueError` otherwise, also for a node that has ended."""
    return ray.get_actor(node, NAMESPACE)


def ask(node: str, token: str, asking: str, name: str, address: Optional[Address] = None) -> List[Address]:
    """Where the tensor of another node's token is read. Its agent reports the token's end to the node ``asking``, and sends
    other nodes to its ``address``, if it has one."""
    try:
        return cast(List[Address], ray.get(running_agent(node).serve.remote(token, asking, address), timeout=ANSWER_TIMEOUT))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, CotensorError) else None
        raise NotFoundError(f"{name} of node {node}: {cause or error}", field=name) from error
    except (ValueError, ray.exceptions.RayError) as error:
        # Of several classes: the actor has ended, cannot be started again on its node, or does not answer in time.
        raise IoError(f"{name} of node {node}: the node does not answer: {error}", field=name) from error


def others(own: str) -> List[str]:
    """The nodes of the cluster but ``own``."""
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own]


def with_agents(nodes: List[str]) -> List[str]:
    """Those of the nodes that have an agent, also one that is starting."""
    found = []
    for node in nodes:
        with contextlib.suppress(ValueError):
            running_agent(node)
            found.append(node)
    return found


def unanswered(nodes: Iterable[str]) -> str:
    """The end of an error message: the nodes that did not answer, and that may have the tensor or the model. Empty for none."""
    names = [f"node {node}" for node in sorted(nodes)]
    return f"; without an answer: {', '.join(names)}" if names else ""


def answers(
    own: str, method: str, *arguments: Any, timeout: float = ANSWER_TIMEOUT, nodes: Optional[List[str]] = None
) -> Iterator[Tuple[str, Any]]:
    """The nodes but ``own``, or the named ones, and what their agents answer in time, in the order of the answers."""
    return _answers(others(own) if nodes is None else nodes, method, arguments, timeout)


def answer_of(node: str, method: str, *arguments: Any, timeout: float = ANSWER_TIMEOUT) -> Optional[Any]:
    """What the agent of a node answers; ``None`` if it does not answer in time."""
    return next((answer for _, answer in _answers([node], method, arguments, timeout)), None)


def _answers(nodes: List[str], method: str, arguments: Tuple[Any, ...], timeout: float) -> Iterator[Tuple[str, Any]]:
    end = time.monotonic() + timeout
    asked = {}
    for node in nodes:
        # A node without an agent has no daemon.
        with contextlib.suppress(ValueError):
            asked[getattr(running_agent(node), method).remote(*arguments)] = node
    while asked:
        done, _ = ray.wait(list(asked), timeout=max(0.0, end - time.monotonic()))
        if not done:
            return
        node = asked.pop(done[0])
        with contextlib.suppress(ray.exceptions.RayError):
            yield node, ray.get(done[0])
