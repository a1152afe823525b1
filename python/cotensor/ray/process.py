"""A process of a Ray program at its node: the store, and the agent that keeps its tensors."""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import Any, Iterator, List, Literal, NamedTuple, Optional, Tuple, cast

import ray

from .._native import Store, Tensor
from ..client import SharedTensorClient
from ..errors import NotFoundError, UnsupportedError
from .agent import KEEP, PULL, agent_of
from .submissions import keep_while_submitted

#: As what a handle is opened.
Form = Literal["tensor", "numpy", "torch"]

#: Tokens that a process asks for at a time: a request takes longer than a call.
_TOKENS = 64
#: The time for an agent to start, with its daemon, in seconds.
START_TIMEOUT = 120.0
#: The time for an answer of the node's own agent: for a copy from another node it includes the transfer.
_ANSWER_TIMEOUT = 600.0


class Handle(NamedTuple):
    """A tensor in an object of Ray. As long as Ray counts a reference to ``token``, the agent of ``node`` keeps the tensor."""

    node: str
    name: str
    id: Tuple[int, int]
    shape: Tuple[int, ...]
    dtype: str
    #: Offset, dtype, shape and strides of a view.
    view: Optional[Tuple[int, str, Tuple[int, ...], Tuple[int, ...]]]
    form: Form
    token: Any


def node_id() -> str:
    """The node of this process."""
    return cast(str, ray.get_runtime_context().get_node_id())


class Process:
    """This process at its node. One for each connection to a cluster."""

    _lock = threading.Lock()
    _current: Optional["Process"] = None
    _worker = ""

    def __init__(self) -> None:
        self.node = node_id()
        with aside():
            self._agent = agent_of(self.node)
            socket = ray.get(self._agent.socket.remote(), timeout=START_TIMEOUT)
        self.store = Store.connect(socket, client="ray", autostart=False)
        self._client = SharedTensorClient(store=self.store)
        self._tokens: List[Any] = []
        self._tokens_lock = threading.Lock()

    @classmethod
    def current(cls) -> "Process":
        """The one of the present connection."""
        worker = ray.get_runtime_context().get_worker_id()
        if cls._current is None or cls._worker != worker:
            # Without the lock: a thread that opens a handle has a lock of Ray, for which this one may wait.
            new = Process()
            with cls._lock:
                if cls._current is None or cls._worker != worker:
                    cls._current, cls._worker = new, worker
        return cls._current

    def publish(self, value: Any, form: Form) -> Handle:
        """Publishes an array, which lives as long as the handle's token. Raises :class:`OverBudgetError`."""
        with self.store.put(f"ray/{uuid.uuid4().hex}", value, keep=False) as tensor:
            return self.handle_of(tensor, form)

    def handle_of(self, tensor: Tensor, form: Form = "tensor") -> Handle:
        """A handle of a tensor. One of another store is published here first."""
        try:
            reduced: Tuple[Any, ...] = tensor.__reduce__()  # type: ignore[assignment]
        except UnsupportedError:
            # Of a store inside of this process.
            return self.publish(tensor, form)
        socket, _, name, id_, view = reduced[1]
        if str(socket) != str(self.store.socket):
            return self.publish(tensor, form)
        token = self._token()
        keep_while_submitted(token)
        self._client.call_function(KEEP, [token.hex(), list(id_)])
        shape, dtype = (tensor.shape, str(tensor.dtype)) if view is None else self._whole(id_)
        return Handle(self.node, name, tuple(id_), shape, dtype, view, form, token)

    def open(self, handle: Handle) -> Any:
        """The tensor of a handle, mapped. One of another node is copied to this node first, once for all of its processes."""
        id_ = handle.id
        if handle.node != self.node:
            key = [handle.node, handle.name, list(handle.id), list(handle.shape), handle.dtype]
            arguments = [handle.token.hex(), *key]
            id_ = tuple(self._client.call_function(PULL, arguments, timeout=_ANSWER_TIMEOUT))
        tensor = self.store.lease(id_)
        if handle.node == self.node and tensor.name != handle.name:
            tensor.release()
            raise NotFoundError(f"{handle.name}: the node's daemon was replaced, and its tensors are lost", field=handle.name)
        if handle.view is not None:
            tensor = tensor.view(*handle.view)
        if handle.form == "tensor":
            return tensor
        return tensor.numpy() if handle.form == "numpy" else tensor.torch()

    def _whole(self, id_: Tuple[int, int]) -> Tuple[Tuple[int, ...], str]:
        with self.store.lease(id_) as whole:
            return whole.shape, str(whole.dtype)

    def _token(self) -> Any:
        while True:
            with self._tokens_lock:
                if self._tokens:
                    return self._tokens.pop()
            with aside():
                more = ray.get(self._agent.tokens.remote(_TOKENS), timeout=START_TIMEOUT)
            with self._tokens_lock:
                self._tokens += more


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """A block that uses Ray while this thread writes an object: Ray notes the references in the object by thread."""
    noted = vars(ray._private.worker.global_worker.get_serialization_context()._thread_local)
    before = dict(noted)
    noted.clear()
    try:
        yield
    finally:
        noted.clear()
        noted.update(before)
