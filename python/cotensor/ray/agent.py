"""The agent of a node: an actor that starts the node's daemon, keeps tensors for handles and copies those of other nodes."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._native import Store, Tensor, __version__
from ..errors import ConflictError, IoError, NoDaemonError, NotFoundError, UnsupportedError
from ..provider import SharedTensorProvider
from . import daemon
from .arrival import Readable
from .calls import CALLS_MAX, Callee, Outcome
from .files import OpenFile
from .folders import remove_ended
from .handle import COPY_PREFIX, Handle, Id, Spec, leased, own_name
from .holdings import Holdings
from .hooks import agents_env
from .model_folders import Answer, ModelFolders, Wanted
from .models import Described
from .named import Named
from .origins import OtherAgents
from .orphans import Orphans, remove
from .peers import ANSWER_TIMEOUT, NAMESPACE, announce, check_head, living, others, running_agent, tell
from .pulls import Pulls, TensorTarget, whole
from .transfer import Address, Server
from .trees import Trees

#: Functions that an agent offers to the processes of its node. A process of another version finds none of them.
KEEP, PULL, BRING, MODEL = (f"cotensor.ray.{name}.{__version__}" for name in ("keep", "pull", "bring", "model"))
#: The part of a node's memory, as Ray counts it, for the tensors of its daemon.
MEMORY_SHARE = 0.3
#: Processes that wait for copies at a time. :class:`Pulls` limits the copies themselves.
_WAITING = 256
#: The time for an agent to start, with its daemon, in seconds.
START_TIMEOUT = 120.0
#: The time between two looks at agents that are starting, in seconds.
_START_INTERVAL = 0.5
#: The time between two looks at the daemon and at the nodes of copies, in seconds.
_WATCH_INTERVAL = 5.0


def agent_of(node: str) -> Any:
    """The agent of a node. The first call starts it. Raises :class:`IoError` if the head of the cluster does not answer."""
    # A process of the node names another version of its agent itself.
    with contextlib.suppress(ValueError, UnsupportedError):
        return running_agent(node)
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
        "runtime_env": agents_env(),
    }
    # These are refused as options.
    kind = ray.remote(concurrency_groups={"calls": CALLS_MAX, "signs": 2})(Agent)
    return kind.options(**options).remote(node)


def started_agents(nodes: Sequence[str]) -> List[str]:
    """Those of the nodes whose agents run. Starts missing agents, and waits for those that are starting, also once more. An agent
    that runs and does not answer is given up after the time for an answer. Raises :class:`IoError` as :func:`agent_of`."""
    began, started = time.monotonic(), []
    asked = {agent_of(node).socket.remote(): node for node in nodes}
    while asked and time.monotonic() - began < START_TIMEOUT:
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_START_INTERVAL)
        if time.monotonic() - began > ANSWER_TIMEOUT:
            asked = {one: node for one, node in asked.items() if one in done or not is_running(node)}
        for one in done:
            node = asked.pop(one)
            try:
                ray.get(one)
                started.append(node)
            except ray.exceptions.ActorUnavailableError:
                # It is being started again.
                time.sleep(_START_INTERVAL)
                asked[agent_of(node).socket.remote()] = node
            except ray.exceptions.RayError:
                # The node has ended.
                pass
    return started


def is_running(node: str) -> bool:
    """Whether the agent of a node has started, by the state of its actor. Raises :class:`IoError` if the head of the cluster
    does not answer."""
    try:
        actor = running_agent(node)._actor_id.hex()
    except ValueError:
        return False
    check_head()
    return bool(ray._private.state.actors(actor).get("State") == "ALIVE")


def _repeat(look: Callable[[], None]) -> None:
    while True:
        time.sleep(_WATCH_INTERVAL)
        with contextlib.suppress(Exception):
            look()


class Agent:
    """See the module. Its methods are called by Ray; the functions at its end by Cotensor's calls."""

    def __init__(self, node: str) -> None:
        [own] = [one for one in ray.nodes() if one["NodeID"] == node]
        self._node = node
        announce(node)
        self._socket = daemon.socket_of(node)
        daemon.start(self._socket, int(own["Resources"].get("memory", 0) * MEMORY_SHARE))
        self._store = Store.connect(self._socket, client="ray agent", autostart=False)
        self._holdings: Holdings[Any] = Holdings(self._free)
        self._orphans = Orphans(self._store)
        for name in self._store.names(COPY_PREFIX):
            # Of a former life: the tokens for which it has kept them are not known any more.
            self._store.remove(name, missing_ok=True)
        #: The nodes that have copies, by the ids of tensors and files. The next life of this agent knows none of them.
        self._trees: Trees[Any, Address] = Trees()
        self._pulls = Pulls(self._holdings, OtherAgents(node, lambda: self._server.address, self._orphans))
        self._server = Server(own["NodeManagerAddress"], self._find)
        #: Tokens that have ended. The callback runs in a thread of Ray, which must not wait.
        self._ended: "queue.SimpleQueue[bytes]" = queue.SimpleQueue()
        self._callee = Callee(node, self._store, self._opened, self._kept)
        self._named = Named(node, self._store, self._pulls, started_agents)
        folders = daemon.folders_of_models()
        root = folders / f"ray-{node[:32]}"
        self._folders = ModelFolders(node, root, self._pulls, self._lent, started_agents)
        remove_ended(folders, root)
        threading.Thread(target=self._end_tokens, name="tokens", daemon=True).start()
        for look in (self._watch_daemon, self._watch_nodes, self._named.update):
            # One thread for each: a new version of a model takes its time.
            threading.Thread(target=_repeat, args=(look,), name="watch", daemon=True).start()
        # Several, so that new handles do not wait for copies.
        self._providers = [
            self._provide(KEEP, self._keep, 1),
            self._provide(PULL, self._pull, _WAITING),
            self._provide(BRING, self._named.bring, _WAITING),
            self._provide(MODEL, self._folders.bring, _WAITING),
        ]

    def _provide(self, name: str, function: Callable[..., Any], workers: int) -> SharedTensorProvider:
        provider = SharedTensorProvider(store=self._store, execution_mode="server", workers=workers)
        provider.share(name=name)(function)
        provider.start()
        return provider

    def socket(self) -> str:
        """The socket of the node's daemon."""
        return str(self._socket)

    def version(self) -> str:
        """The version of Cotensor that this process has. It may have started for a former program."""
        return str(__version__)

    def tokens(self, count: int) -> List[Any]:
        """References without a value. When Ray counts none to one of them any more, its tensor is released."""
        worker = ray._private.worker.global_worker.core_worker
        references = [ray.put(None) for _ in range(count)]
        self._holdings.begin(reference.binary() for reference in references)
        for reference in references:
            worker.add_object_out_of_scope_callback(reference, self._ended.put)
        return references

    def serve(self, token: str, node: str, address: Optional[Address] = None) -> List[Address]:
        """Where another node reads the tensor or file of a token. This agent reports the token's end to that node, and sends
        others to its address."""
        key = bytes.fromhex(token)
        addresses = [self._server.address]
        lease = self._holdings.serve(key, node)
        if address is not None:
            addresses = self._trees.join(lease.id, key, node, address) + addresses
            if self._holdings.ended([key]):
                # Meanwhile, perhaps before the node joined.
                self._trees.end(key)
        return addresses

    def copy_at(self, node: str, id_: Id) -> Optional[Address]:
        """Where another node reads the copy that this one has of a tensor, if it has one."""
        key = (node, (id_[0], id_[1]))
        if self._holdings.copy(key) is None:
            orphan = self._orphans.lease(key)
            if orphan is None:
                return None
            orphan.release()
        return self._server.address

    def unserve(self, token: str, node: str) -> None:
        """The node has no copy, and no other one is sent there."""
        self._trees.leave(bytes.fromhex(token), node)

    def end_copies(self, token: str) -> None:
        """A token has ended on its node."""
        self._holdings.end_copies(bytes.fromhex(token))

    def ended(self, tokens: List[bytes]) -> List[bytes]:
        """Those of the tokens that have ended."""
        return self._holdings.ended(tokens)

    def counts(self) -> Dict[str, Any]:
        """Numbers for :func:`cotensor.ray.status`."""
        counts = {"pulled": self._pulls.count, "sent_bytes": self._server.sent_bytes}
        functions = {"functions": self._callee.functions(), "running": self._callee.running()}
        more = {**counts, **functions, "names": self._named.names(), "models": self._folders.names()}
        return {"socket": str(self._socket), **self._holdings.counts(), **more}

    def describe(self, name: str) -> Optional[Described]:
        """The tensor of a name on this node."""
        return self._named.describe(name)

    def newest_of(self, names: List[str]) -> Dict[str, Tuple[str, Id]]:
        """The publishers and versions of names on this node."""
        return self._named.newest(names)

    def lend(self, id_: Id, name: str) -> Any:
        """A token for a tensor of this node: it stays while another node has the token."""
        with leased(self._store, id_, name) as tensor:
            return self._kept(tensor)

    def describe_model(self, wanted: Wanted) -> Answer:
        """The folder of a model on this node."""
        return self._folders.describe(wanted)

    def lend_model(self, fingerprint: str) -> List[Any]:
        """Tokens for the files of a model of this node, in their order."""
        return self._folders.lend(fingerprint)

    @ray.method(concurrency_group="calls")  # type: ignore[untyped-decorator]
    def call(self, call: str, name: str, args: Any, kwargs: Any, timeout: Optional[float]) -> Outcome:
        """Calls a function of this node for another one."""
        return self._callee.call(call, name, args, kwargs, timeout)

    @ray.method(concurrency_group="signs")  # type: ignore[untyped-decorator]
    def cancel_call(self, call: str) -> None:
        """The caller waits no more."""
        self._callee.cancel(call)

    @ray.method(concurrency_group="signs")  # type: ignore[untyped-decorator]
    def hear(self, call: str) -> None:
        """The caller waits."""
        self._callee.hear(call)

    def functions(self) -> List[str]:
        """The functions that other nodes find here."""
        return self._callee.functions()

    def offers(self, name: str) -> bool:
        """Whether other nodes find a function here."""
        return self._callee.offers(name)

    def _free(self, copy: Tensor) -> None:
        remove(self._store, copy.name, copy.id)
        copy.release()

    def _opened(self, handle: Handle) -> Tensor:
        """The tensor of a handle that another node has sent."""
        if handle.node == self._node:
            tensor = leased(self._store, handle.id, handle.name)
        else:
            id_ = self._pull(handle.token.hex(), handle.node, handle.name, list(handle.id), list(handle.spec))
            tensor = self._store.lease((id_[0], id_[1]))
        return tensor if handle.view is None else tensor.view(*handle.view)

    def _kept(self, tensor: Tensor) -> Any:
        """A token for a tensor of this node."""
        [token] = self.tokens(1)
        self._keep(token.hex(), list(tensor.id), tensor.name)
        return token

    def _lent(self, files: Sequence[OpenFile]) -> List[Any]:
        """A token for each of several files."""
        tokens = self.tokens(len(files))
        for token, file in zip(tokens, files):
            self._holdings.keep(token.binary(), file)
        return tokens

    def _find(self, name: bytes) -> Readable:
        copy = self._pulls.find(name)
        if copy is not None:
            return copy
        lease = self._holdings.serve(name, "")
        return lease if isinstance(lease, OpenFile) else whole(lease)

    def _end_tokens(self) -> None:
        while True:
            token = self._ended.get()
            nodes = self._holdings.end(token) - {""}
            self._trees.end(token)
            for node in nodes:
                # A node that does not get this asks for it.
                tell(node, "end_copies", token.hex())

    def _watch_daemon(self) -> None:
        try:
            self._store.get_stats()
        except NoDaemonError:
            # It and its supervisor were killed. Ray starts this actor again, which starts another daemon.
            os._exit(1)

    def _watch_nodes(self) -> None:
        """Sends no node to ones that have ended. Ends copies of nodes that have another agent now: it has other tokens. Copies of
        nodes that have ended stay until their memory is needed."""
        wanted = self._holdings.wanted()
        if not wanted and not self._trees.nodes():
            return
        alive = set(living())
        self._trees.retain(alive)
        for node, tokens in wanted.items():
            if node not in alive:
                for key, copy in self._holdings.orphan(node):
                    self._orphans.add(key, copy)
                continue
            try:
                ended = ray.get(running_agent(node).ended.remote(tokens), timeout=ANSWER_TIMEOUT)
            except ValueError:
                if node not in others(self._node):
                    # It has ended just now.
                    continue
                ended = tokens
            except (IoError, UnsupportedError, ray.exceptions.RayError):
                continue
            for token in ended:
                self._holdings.end_copies(token)

    def _keep(self, token: str, id_: List[int], name: str) -> None:
        self._holdings.keep(bytes.fromhex(token), leased(self._store, (id_[0], id_[1]), name))

    def _pull(self, token: str, node: str, name: str, id_: List[int], spec: List[Any]) -> List[int]:
        """Copies a tensor of another node, unless it is here. Returns the copy's id."""
        described = Spec.of(spec)
        described.check_device(f"{name} of node {node}")

        def target() -> TensorTarget:
            return TensorTarget(described.builder(self._store, own_name(COPY_PREFIX), keep=True))

        copy = self._pulls.pull((node, (id_[0], id_[1])), token, name, target)
        try:
            return list(copy.id)
        except ConflictError as error:
            raise NotFoundError(f"{name} of node {node}: no reference is left, or the node has ended", field=name) from error
