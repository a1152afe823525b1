"""The agent of a node: an actor that starts the node's daemon, keeps tensors for handles and copies those of other nodes."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from typing import Any, Dict, List

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._native import Store, Tensor
from ..errors import CotensorError, IoError, NotFoundError
from ..provider import SharedTensorProvider
from . import daemon
from .holdings import Holdings, Key
from .transfer import Address, Server, fetch

#: The namespace of agents, and functions that an agent offers to the processes of its node.
NAMESPACE = "cotensor"
KEEP, PULL = "cotensor.ray.keep", "cotensor.ray.pull"
#: The part of a node's memory, as Ray counts it, for the tensors of its daemon.
MEMORY_SHARE = 0.3
#: The time for another node's agent to answer, in seconds.
_ANSWER_TIMEOUT = 5.0
#: The time between two looks for nodes that have ended, in seconds.
_NODES_INTERVAL = 5.0
#: Copies that come at a time.
_PULLS = 8


def agent_of(node: str) -> Any:
    """The agent of a node. It starts when it is asked for first."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {
        "name": node,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_concurrency": 16,
        "scheduling_strategy": strategy,
    }
    return ray.remote(Agent).options(**options).remote(node)


def running_agent(node: str) -> Any:
    """The agent of a node, if it has one. Raises :class:`ValueError` otherwise, also for a node that has ended."""
    return ray.get_actor(node, NAMESPACE)


class Agent:
    """See the module. Its methods are called by Ray; the functions at its end by Cotensor's calls."""

    def __init__(self, node: str) -> None:
        [own] = [one for one in ray.nodes() if one["NodeID"] == node]
        self._node = node
        self._socket = daemon.socket_of(node)
        daemon.start(self._socket, int(own["Resources"].get("memory", 0) * MEMORY_SHARE))
        self._store = Store.connect(self._socket, client="ray agent", autostart=False)
        self._holdings: Holdings[Tensor] = Holdings()
        self._server = Server(own["NodeManagerAddress"], self._bytes)
        #: Held while a copy is on its way.
        self._pulls: Dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()
        self._pulled = 0
        #: Tokens that have ended. The callback runs in a thread of Ray, which must not wait.
        self._ended: "queue.SimpleQueue[bytes]" = queue.SimpleQueue()
        threading.Thread(target=self._end_tokens, name="tokens", daemon=True).start()
        self._provider = SharedTensorProvider(store=self._store, execution_mode="server", workers=_PULLS)
        self._provider.share(name=KEEP)(self._keep)
        self._provider.share(name=PULL)(self._pull)
        self._provider.start()

    def socket(self) -> str:
        """The socket of the node's daemon."""
        return str(self._socket)

    def tokens(self, count: int) -> List[Any]:
        """References without a value. When Ray counts none to one of them any more, its tensor is released."""
        worker = ray._private.worker.global_worker.core_worker
        references = [ray.put(None) for _ in range(count)]
        for reference in references:
            worker.add_object_out_of_scope_callback(reference, self._ended.put)
        return references

    def serve(self, token: str, node: str) -> Address:
        """Where another node reads the tensor of a token. That node is told when the token ends."""
        self._holdings.serve(bytes.fromhex(token), node)
        return self._server.address

    def end_copies(self, token: str) -> None:
        """A token has ended on its node."""
        self._holdings.end_copies(bytes.fromhex(token))

    def counts(self) -> Dict[str, Any]:
        """Numbers for :func:`cotensor.ray.status`."""
        counts = {"pulled": self._pulled, "sent_bytes": self._server.sent_bytes}
        return {"socket": str(self._socket), **self._holdings.counts(), **counts}

    def _bytes(self, token: bytes) -> Tensor:
        tensor = self._holdings.serve(token, "")
        # Not every dtype has a buffer.
        return tensor.view(0, "uint8", (tensor.nbytes,))

    def _end_tokens(self) -> None:
        looked = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                token = self._ended.get(timeout=_NODES_INTERVAL)
                for node in self._holdings.end(token) - {""}:
                    # A node that is gone has no copy.
                    with contextlib.suppress(ValueError):
                        running_agent(node).end_copies.remote(token.hex())
            if time.monotonic() - looked >= _NODES_INTERVAL:
                self._end_nodes()
                looked = time.monotonic()

    def _end_nodes(self) -> None:
        if self._holdings.nodes():
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            for node in self._holdings.nodes() - alive:
                self._holdings.end_node(node)

    def _keep(self, token: str, id_: List[int]) -> None:
        self._holdings.keep(bytes.fromhex(token), self._store.lease((id_[0], id_[1])))

    def _pull(self, token: str, node: str, name: str, id_: List[int], shape: List[int], dtype: str) -> List[int]:
        """Copies a tensor of another node, unless it is here. Returns the copy's id."""
        key: Key = (node, (id_[0], id_[1]))
        self._holdings.want(key, bytes.fromhex(token))
        with self._lock:
            lock = self._pulls.setdefault(key, threading.Lock())
        with lock:
            copy = self._holdings.copy(key)
            if copy is None:
                copy = self._copied(key, token, name, shape, dtype)
        with self._lock:
            self._pulls.pop(key, None)
        return list(copy.id)

    def _copied(self, key: Key, token: str, name: str, shape: List[int], dtype: str) -> Tensor:
        node, id_ = key
        try:
            address = ray.get(running_agent(node).serve.remote(token, self._node), timeout=_ANSWER_TIMEOUT)
        except (ValueError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise IoError(f"{name}: node {node}, which has the tensor, does not answer: {error}", field=name) from error
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, CotensorError) else None
            raise NotFoundError(f"{name} of node {node}: {cause or error}", field=name) from error
        with self._store.empty(f"ray/{node[:16]}/{id_[0]}", tuple(shape), dtype, keep=False) as builder:
            if builder.nbytes:
                memory = (ctypes.c_ubyte * builder.nbytes).from_address(builder.data_ptr)
                fetch(address, bytes.fromhex(token), memoryview(memory).cast("B"))
            copy = builder.publish()
        self._pulled += 1
        self._holdings.add_copy(key, copy)
        return copy

