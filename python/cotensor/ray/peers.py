"""The agents of other nodes."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, cast

import ray

from .._native import __version__
from ..errors import CotensorError, IoError, NotFoundError, UnsupportedError
from .transfer import Address

#: The namespace of agents.
NAMESPACE = "cotensor"
#: The time for another node's agent to answer, in seconds.
ANSWER_TIMEOUT = 4.5
#: The same if copies of other nodes are looked for afterwards, and for a message that nothing waits for.
_ASK_TIMEOUT, _TELL_TIMEOUT = 4.0, 0.5
#: The actors of the agents that this process has found, with the version of this process, by their nodes. Ray finds them again
#: without the head of the cluster.
_found: Dict[str, str] = {}


def announce(node: str) -> None:
    """Notes at the head of the cluster which version of Cotensor this actor, the agent of a node, has.

    An actor has one version, so that processes that know it do not ask again. If Ray has started it again with another version,
    it ends here for good, and the next use of the node's agent starts another actor.
    """
    actor = ray.get_runtime_context().get_actor_id()
    if version_of(node, actor) not in (None, __version__):
        ray.actor.exit_actor()
    head = ray._private.worker.global_worker.gcs_client
    head.internal_kv_put(node.encode(), f"{__version__} {actor}".encode(), True, NAMESPACE.encode(), ANSWER_TIMEOUT)


def version_of(node: str, actor: str, timeout: float = ANSWER_TIMEOUT) -> Optional[str]:
    """The version of Cotensor of an actor, the agent of a node. None if it has not started.

    Raises :class:`IoError` if the head of the cluster does not answer in time.
    """
    version, _, of = _noted(node, timeout).partition(" ")
    return version if of == actor else None


def check_head(timeout: float = ANSWER_TIMEOUT) -> None:
    """Raises :class:`IoError` if the head of the cluster does not answer in time."""
    _noted("", timeout)


def _noted(node: str, timeout: float) -> str:
    """What :func:`announce` has noted of a node. Ray's own calls of the head wait for 60 s."""
    head = getattr(ray._private.worker.global_worker, "gcs_client", None)
    try:
        # A client of Ray Client has none.
        found = head and head.internal_kv_get(node.encode(), NAMESPACE.encode(), max(timeout, 0.01))
    except ray.exceptions.RpcError as error:
        raise IoError(f"the head of the Ray cluster does not answer: {error}", field="head") from error
    return found.decode() if found else ""


def running_agent(node: str, timeout: float = ANSWER_TIMEOUT) -> Any:
    """The agent of a node, if it has one. Raises :class:`ValueError` otherwise, also for a node that has ended,
    :class:`UnsupportedError` for an agent with another version of Cotensor, whose answers may have other classes, and
    :class:`IoError` if the head of the cluster is needed, and does not answer in time."""
    end = time.monotonic() + timeout
    if node not in _found:
        check_head(timeout)
    try:
        agent = ray.get_actor(node, NAMESPACE)
    except ValueError:
        _found.pop(node, None)
        raise
    actor = agent._actor_id.hex()
    if _found.get(node) != actor:
        version = version_of(node, actor, end - time.monotonic())
        if version not in (None, __version__):
            own = ray.get_runtime_context().get_node_id()
            both = f"node {node} has Cotensor {version}, and this process on node {own} has {__version__}"
            raise UnsupportedError(f"{both}: install one version on all nodes, and end the other one's agents", field="version")
        if version is not None:
            _found[node] = actor
    return agent


def ask(node: str, token: str, asking: str, name: str, address: Optional[Address] = None) -> List[Address]:
    """Where the tensor of another node's token is read. Its agent reports the token's end to the node ``asking``, and sends
    other nodes to its ``address``, if it has one."""
    end = time.monotonic() + _ASK_TIMEOUT
    try:
        asked = running_agent(node, _ASK_TIMEOUT).serve.remote(token, asking, address)
        return cast(List[Address], ray.get(asked, timeout=max(0.0, end - time.monotonic())))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, CotensorError) else None
        raise NotFoundError(f"{name} of node {node}: {cause or error}", field=name) from error
    except (ValueError, IoError, ray.exceptions.RayError) as error:
        # Of several classes: the actor has ended, cannot be started again on its node, or does not answer in time.
        raise IoError(f"{name} of node {node}: the node does not answer: {error}", field=name) from error


def tell(node: str, method: str, *arguments: Any) -> None:
    """Calls a method of the agent of a node, and waits for nothing. A node that has ended needs no message."""
    with contextlib.suppress(Exception):
        getattr(running_agent(node, _TELL_TIMEOUT), method).remote(*arguments)


def living(timeout: float = ANSWER_TIMEOUT) -> List[str]:
    """The nodes of the cluster. Raises :class:`IoError` if its head does not answer in time."""
    check_head(timeout)
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]


def others(own: str, timeout: float = ANSWER_TIMEOUT) -> List[str]:
    """As :func:`living`, but ``own``."""
    return [node for node in living(timeout) if node != own]


def with_agents(nodes: List[str]) -> List[str]:
    """Those of the nodes that have an agent, also one that is starting, or of which the head does not say it in time."""
    return [node for node, _ in _agents(nodes, time.monotonic() + ANSWER_TIMEOUT)]


def _agents(nodes: List[str], end: float) -> Iterator[Tuple[str, Optional[Any]]]:
    """The agents of those of the nodes that have one. None for one that is not known in time. Raises :class:`UnsupportedError` as
    :func:`running_agent`."""
    for node in nodes:
        try:
            left = end - time.monotonic()
            yield node, running_agent(node, left) if left > 0 else None
        except ValueError:
            # Without an agent, it has no daemon.
            pass
        except IoError:
            yield node, None


def unanswered(nodes: Iterable[str]) -> str:
    """The end of an error message: the nodes that did not answer, and that may have the tensor or the model. Empty for none."""
    names = [f"node {node}" for node in sorted(nodes)]
    return f"; without an answer: {', '.join(names)}" if names else ""


def answers(
    own: str, method: str, *arguments: Any, timeout: float = ANSWER_TIMEOUT, nodes: Optional[List[str]] = None
) -> Iterator[Tuple[str, Any]]:
    """The nodes but ``own``, or the named ones, and what their agents answer in time, in the order of the answers."""
    return _answers(others(own, timeout) if nodes is None else nodes, method, arguments, timeout)


def answer_of(node: str, method: str, *arguments: Any, timeout: float = ANSWER_TIMEOUT) -> Optional[Any]:
    """What the agent of a node answers; ``None`` if it does not answer in time."""
    return next((answer for _, answer in _answers([node], method, arguments, timeout)), None)


def _answers(nodes: List[str], method: str, arguments: Tuple[Any, ...], timeout: float) -> Iterator[Tuple[str, Any]]:
    end = time.monotonic() + timeout
    agents = _agents(nodes, end)
    asked = {getattr(agent, method).remote(*arguments): node for node, agent in agents if agent is not None}
    while asked:
        done, _ = ray.wait(list(asked), timeout=max(0.0, end - time.monotonic()))
        if not done:
            return
        node = asked.pop(done[0])
        with contextlib.suppress(ray.exceptions.RayError):
            yield node, ray.get(done[0])
