"""A process of a Ray program at its node: the store, and the agent that keeps its tensors."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import functools
import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, cast

import ray

from .._native import Store, Tensor, __version__
from ..client import SharedTensorClient
from ..errors import IoError, NoDaemonError, NotFoundError, OverBudgetError, RemoteError, TimedOutError, UnsupportedError
from .agent import BRING, KEEP, MODEL, PULL, START_TIMEOUT, agent_of, is_running
from .folders import use
from .handle import Form, Handle, Id, Spec, copied, leased, own_name, reduced, spec_of
from .peers import NAMESPACE, ask
from .pulls import TensorTarget, received, sources_of
from .submissions import keep_while_submitted

#: Tokens that a process asks for at a time: a request takes longer than a call.
_TOKENS = 64
#: The time for an agent that was started again to offer its functions, in seconds.
_START_WAIT = 10.0
#: An agent of this node that runs, and does not answer for so long, hangs, in seconds. The machine can be busy.
_SILENT_MAX = 10.0
#: The time between two signs of life that a waiting call asks for, in seconds.
_SIGN_INTERVAL = 1.0
#: The field of an error of an agent that hangs.
_AGENT = "agent"


def node_id() -> str:
    """The node of this process."""
    return cast(str, ray.get_runtime_context().get_node_id())


class Process:
    """This process at its node. One for each connection to a cluster."""

    _lock = threading.Lock()
    _current: Optional["Process"] = None
    #: Its worker and node. The first program of each cluster has the same worker id.
    _at = ("", "")
    #: With which this process uses folders of models from other nodes, by folder. See :func:`folders.use`.
    _folders: Dict[str, int] = {}

    def __init__(self) -> None:
        self.node = node_id()
        self.store = Store.connect(self._start_agent(), client="ray", autostart=False)
        # Each copy takes its time. See `_waited`.
        self._client = SharedTensorClient(store=self.store, timeout=None)
        self._tokens: List[Any] = []
        self._tokens_lock = threading.Lock()

    @classmethod
    def current(cls) -> "Process":
        """The one of the present connection.

        Raises :class:`UnsupportedError` without one, as after ``ray.shutdown``: Ray would start a cluster otherwise.
        """
        if not ray.is_initialized():
            raise UnsupportedError("this process is in no cluster of Ray: call cotensor.ray.init() first", field="address")
        at = ray.get_runtime_context().get_worker_id(), node_id()
        if cls._current is None or cls._at != at:
            # Without the lock: a thread that opens a handle has a lock of Ray, for which this one may wait.
            new = Process()
            with cls._lock:
                if cls._current is None or cls._at != at:
                    cls._current, cls._at = new, at
        return cls._current

    def publish(self, value: Any, form: Form) -> Handle:
        """Publishes an array, which lives as long as the handle's token. Raises :class:`OverBudgetError`."""
        with self.put(value) as tensor:
            return self.handle_of(tensor, form)

    def put(self, value: Any) -> Tensor:
        """A tensor of the node with the values of an array, which lives as long as its leases."""
        return self.store.put(own_name(), value, keep=False)

    def handle_of(self, tensor: Tensor, form: Form = "tensor") -> Handle:
        """A handle of a tensor. One of another store is copied to this one first."""
        try:
            socket, name, id_, view = reduced(tensor)
        except UnsupportedError:
            # Of a store inside of this process.
            socket = ""
        if socket != str(self.store.socket):
            with copied(self.store, tensor) as copy:
                return self.handle_of(copy, form)
        token = self._keep(id_, name)
        keep_while_submitted(token)
        return Handle(self.node, name, id_, spec_of(tensor) if view is None else self._spec_of_whole(id_), view, form, token)

    def open(self, handle: Handle) -> Any:
        """The tensor of a handle, mapped. One of another node is copied to this node first, once for all of its processes."""
        tensor = self._own(handle) if handle.node == self.node else self._copy(handle)
        if handle.view is not None:
            tensor = tensor.view(*handle.view)
        if handle.form == "tensor":
            return tensor
        return tensor.numpy() if handle.form == "numpy" else tensor.torch()

    def put_small(self, array: Any) -> Tensor:
        """A tensor of this node with the values of a small array that has travelled in its object."""
        return self._made(lambda store: store.put(own_name(), array, keep=False))

    def put_values(self, spec: Spec, data: bytes) -> Tensor:
        """A tensor of this node, whose values have travelled in their object."""

        def make(store: Store) -> Tensor:
            builder = spec.builder(store, own_name(), keep=False)
            builder._write_bytes(0, data)
            return builder.publish()

        return self._made(make)

    def _made(self, make: Callable[[Store], Tensor]) -> Tensor:
        try:
            return make(self.store)
        except (OverBudgetError, NoDaemonError) as error:
            warnings.warn(f"a tensor is copied into this process: {error}", ResourceWarning, stacklevel=3)
            return make(Store())

    def get(self, name: str) -> Tensor:
        """The tensor of a name. One of another node is copied to this node first, under the same name."""
        try:
            return self.store.get(name)
        except NotFoundError:
            self._call(BRING, [name])
            return self.store.get(name)

    def model(self, name: str, base: str, variant: Optional[str]) -> str:
        """The folder of a model on this node. A copy of another node's stays as long as this process."""
        while True:
            model, folder = self._call(MODEL, [name, base, variant])
            if not folder or folder in self._folders:
                return cast(str, model)
            descriptor = use(Path(folder))
            if descriptor is not None:
                with self._lock:
                    kept = self._folders.setdefault(folder, descriptor)
                if kept != descriptor:
                    # Another thread has got it meanwhile.
                    os.close(descriptor)
                return cast(str, model)

    def _own(self, handle: Handle) -> Tensor:
        try:
            return leased(self.store, handle.id, handle.name)
        except NotFoundError as error:
            raise _lost(handle) from error

    def _copy(self, handle: Handle) -> Tensor:
        token = handle.token.hex()
        arguments = [token, handle.node, handle.name, list(handle.id), list(handle.spec)]
        try:
            id_ = tuple(self._call(PULL, arguments))
        except OverBudgetError as error:
            warnings.warn(f"a tensor of another node is copied into this process: {error}", ResourceWarning, stacklevel=2)
            with aside():
                addresses = ask(handle.node, token, self.node, handle.name)
            target = TensorTarget(handle.spec.builder(Store(), own_name(), keep=False))
            return received(target, sources_of(addresses, (handle.node, handle.id), token), handle.name, handle.node)
        try:
            return self.store.lease(id_)
        except NotFoundError as error:
            raise _lost(handle) from error

    def _spec_of_whole(self, id_: Id) -> Spec:
        with self.store.lease(id_) as whole:
            return spec_of(whole)

    def _keep(self, id_: Id, name: str) -> Any:
        """A token for which the agent keeps the tensor."""
        token = self._token()
        try:
            self._call(KEEP, [token.hex(), list(id_), name])
        except NotFoundError:
            # The agent was restarted, and does not know the tokens of the former one.
            with self._tokens_lock:
                self._tokens.clear()
            token = self._token()
            self._call(KEEP, [token.hex(), list(id_), name])
        return token

    def _token(self) -> Any:
        while True:
            with self._tokens_lock:
                if self._tokens:
                    return self._tokens.pop()
            try:
                with aside():
                    [more] = self._answers([self._agent.tokens.remote(_TOKENS)])
            except ray.exceptions.RayActorError:
                self._start_agent()
                continue
            with self._tokens_lock:
                self._tokens += more

    def _call(self, function: str, arguments: List[Any]) -> Any:
        """Calls a function of the agent, which is started again when it does not run."""
        for wait in (None, _START_WAIT):
            try:
                return self._quick(arguments, wait) if function == KEEP else self._waited(function, arguments, wait)
            except (NotFoundError, IoError) as error:
                if wait or isinstance(error, (NoDaemonError, RemoteError)) or error.field == _AGENT:
                    raise
            self._start_agent()
        raise AssertionError

    def _quick(self, arguments: List[Any], wait: Optional[float]) -> Any:
        """Each object with a tensor waits for this call."""
        try:
            return self._client.call_function(KEEP, arguments, timeout=_SILENT_MAX + (wait or 0.0), wait=wait)
        except TimedOutError as error:
            raise self._silent() from error

    def _waited(self, function: str, arguments: List[Any], wait: Optional[float]) -> Any:
        """The result of a function that copies. It takes any time while the agent gives signs of life."""
        outcome: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
        call = functools.partial(contextvars.copy_context().run, self._client.call_function, function, arguments, wait=wait)
        threading.Thread(target=_settle, args=(outcome, call), name="agent", daemon=True).start()
        sign, heard = None, time.monotonic()
        try:
            while not concurrent.futures.wait([outcome], _SIGN_INTERVAL).done:
                with aside():
                    if sign is not None and ray.wait([sign], timeout=0)[0]:
                        sign, heard = None, time.monotonic()
                    if time.monotonic() - heard > _SILENT_MAX:
                        raise self._silent()
                    sign = sign or self._agent.hear.remote("")
            return outcome.result()
        finally:
            # An error has this frame, and the outcome the error: together, they would keep the caller's references.
            del outcome

    def _answers(self, asked: List[Any]) -> List[Any]:
        """The results of methods of the agent, which may be starting."""
        end = time.monotonic() + START_TIMEOUT
        while True:
            done, _ = ray.wait(asked, num_returns=len(asked), timeout=_SILENT_MAX)
            if len(done) < len(asked) and (time.monotonic() > end or is_running(self.node)):
                # It may have started just now.
                done, _ = ray.wait(asked, num_returns=len(asked), timeout=_SIGN_INTERVAL)
                if len(done) < len(asked):
                    raise self._silent()
            if len(done) == len(asked):
                return cast(List[Any], ray.get(asked))

    def _silent(self) -> IoError:
        agent = f"the agent of this node, the actor {self.node!r} in the namespace {NAMESPACE!r}"
        return IoError(f"{agent}, does not answer: end its process, and Ray starts it again", field=_AGENT)

    def _start_agent(self) -> str:
        """Starts the agent unless it runs. Returns the socket of its daemon."""
        for last in (False, False, True):
            try:
                with aside():
                    self._agent = agent_of(self.node)
                    asked = [self._agent.socket.remote(), self._agent.version.remote()]
                    socket, version = self._answers(asked)
                if version != __version__:
                    raise UnsupportedError(
                        f"the agent of node {self.node} has Cotensor {version}, and this process {__version__}: use one version, "
                        f"or end the agent with ray.kill(ray.get_actor({self.node!r}, {NAMESPACE!r}), no_restart=False)"
                    )
                return cast(str, socket)
            except ray.exceptions.RayActorError as error:
                # It was killed just now, unless it cannot start.
                if last or "creation task" in str(error):
                    raise
                time.sleep(_START_WAIT / 10)
        raise AssertionError


def _settle(outcome: "concurrent.futures.Future[Any]", call: Callable[[], Any]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:
        outcome.set_exception(error)
    finally:
        del outcome


def _lost(handle: Handle) -> NotFoundError:
    why = "no reference to it is left, or the node's agent or daemon was restarted"
    return NotFoundError(f"{handle.name} of node {handle.node}: the tensor was freed: {why}", field=handle.name)


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
