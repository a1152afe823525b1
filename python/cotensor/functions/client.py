"""Calls functions of other processes.

::

    from cotensor.client import SharedTensorClient

    with SharedTensorClient() as client:
        client.call_function("add_numbers", [10, 20])
        client.add_numbers(10, 20)                       # the same
        model = client.call_function("create_model")     # a managed result: a reference to an object in the provider's process
        client.call_function("model_inference", [model, x])
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar

from .. import _checks, _native
from .._forks import renewed
from .._handles import open_client
from .._native import Store
from ..errors import ConflictError, CotensorError, NoDaemonError, NotFoundError
from . import discovery, lifecycle
from .call_context import check_cancelled
from .directory import Directory, Functions, RemoteFunction
from .discovery import Socket
from .retries import Retries, log, not_called
from .tasks import Tasks

T = TypeVar("T")


class SharedTensorClient(Tasks):
    """Calls functions of other processes by name.

    The daemon is the one of ``store`` or ``socket``, else of ``COTENSOR_SOCKET``, else that of ``server_port`` or ``RANK``, else
    the default one, which :func:`cotensor.connect` uses. The client connects on first use.

    ``timeout`` is the default time limit of a call in seconds, from the look-up of the function to the answer; ``None`` means no
    limit. After it the provider stops the call, and the caller gets a :class:`~cotensor.errors.TimedOutError` that names the
    provider, even if the provider does not answer. ``retry_count`` is the number of retries while there is no daemon or no
    provider of the function; the pauses between them are 0.1, 0.2, 0.4, … s. With ``wait``, a call is tried for that many seconds
    at least, for example while a server starts; a function by attribute is then looked up by its call. The client never repeats a
    call that may have run.

    ``tensors`` is the type of tensors in results: ``torch``, ``numpy``, ``cotensor``, or ``auto`` (torch's if torch is imported,
    else numpy's if numpy is installed). For ``allow_pickle`` see :class:`~cotensor.provider.SharedTensorProvider`.

    All methods may be called from any thread. A forked child connects anew by itself.
    """

    def __init__(
        self,
        server_port: Optional[int] = None,
        timeout: Optional[float] = 30,
        retry_count: int = 3,
        verbose_debug: bool = False,
        *,
        store: Optional[Store] = None,
        socket: Optional[Socket] = None,
        tensors: str = "auto",
        allow_pickle: bool = False,
        name: Optional[str] = None,
        wait: Optional[float] = None,
    ) -> None:
        self.server_port = discovery.port_of(server_port)
        self._port = discovery.named_port(server_port)
        self.timeout = _checks.seconds(timeout, "timeout")
        self.retry_count = _checks.count(retry_count, "retry_count")
        self.wait = _checks.seconds(wait, "wait")
        self._socket = _checks.path(socket, "socket")
        self._given = store
        self._name = _checks.named(name)
        self._values: Dict[str, Any] = {
            "tensors": _checks.one_of(tensors, "tensors", _checks.TENSORS),
            "allow_pickle": _checks.truth(allow_pickle, "allow_pickle"),
        }
        self._lock = renewed(self, "_lock", threading.Lock)
        self._store: Optional[Store] = None
        self._native: Optional[_native.Functions] = None
        self._closed = False
        #: The functions of all providers: ``client.functions.add(1, 2)``, ``client.functions["model.run"](…)``.
        self.functions = Functions(Directory(self._by_attribute, self.has_function, self.list_functions, bool(self.wait)))
        if verbose_debug:
            logging.basicConfig()
            logging.getLogger("cotensor").setLevel(logging.DEBUG)

    def _functions(self, timeout: Optional[float] = None) -> _native.Functions:
        with self._lock:
            if self._closed:
                raise ConflictError("this client is closed")
            if self._native is None:
                self._store = self._given or discovery.connect(
                    self._port, self._socket, self._name, self.timeout if timeout is None else timeout
                )
                self._native = _native.Functions(self._store, timeout=self.timeout, **self._values)
                lifecycle.opened(self)
                log.debug("connected to %s", self._store.socket)
            return self._native

    @property
    def store(self) -> Store:
        """The store of arguments and results."""
        self._functions()
        assert self._store is not None
        return self._store

    def _retries(self, timeout: Optional[float] = None, wait: Optional[float] = None) -> Retries:
        """The attempts of a call with these limits, by default the client's."""
        limit = self.timeout if timeout is None else _checks.seconds(timeout, "timeout")
        return Retries(self.retry_count, self.wait if wait is None else _checks.seconds(wait, "wait"), limit)

    def _retrying(
        self, act: Callable[[Callable[[], Optional[float]]], T], name: str = "", retries: Optional[Retries] = None
    ) -> T:
        """Runs ``act`` with a function that returns the remaining time, and retries it while no function ran.

        There is no retry after the timeout, and none for an unknown name if a function has a similar name, unless the call waits.
        """
        retries = Retries(self.retry_count, self.wait, None) if retries is None else retries
        while True:
            try:
                return act(retries.time_left)
            except (NotFoundError, NoDaemonError) as error:
                if not not_called(error):
                    raise
                final = self._misspelt(name, error, retries)
                if final is not None:
                    raise final from None
                pause = retries.next_pause(error)
                if pause is None:
                    raise
            check_cancelled()
            time.sleep(pause)

    def _misspelt(self, name: str, error: CotensorError, retries: Retries) -> Optional[NotFoundError]:
        """The error of an unknown name if a function has a similar name and the call does not wait for a provider."""
        if not name or not isinstance(error, NotFoundError) or retries.is_waiting:
            return None
        suggestion = self._suggestion(name)
        return NotFoundError(f"{error}{suggestion}", field="name") if suggestion else None

    def _suggestion(self, name: str) -> str:
        try:
            return self.functions._directory.suggestion(name)
        except CotensorError:
            return ""  # the caller raises the first error

    # -- calls -----------------------------------------

    def call_function(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        *,
        timeout: Optional[float] = None,
        wait: Optional[float] = None,
    ) -> Any:
        """Calls the function ``name`` and waits for its result, for at most ``timeout`` seconds, by default the client's. While
        no process provides the function, the call waits up to ``wait`` seconds for one, by default the client's.

        Arguments are numbers, strings, bytes, lists, tuples, dicts with strings as keys, tensors (of torch, numpy, JAX or this
        package) and remote objects. Tensors of the store cross without a copy; others are put there first.

        Raises the function's exception (:class:`~cotensor.errors.RemoteError`, which is also a ``ValueError`` for a
        ``ValueError``), :class:`NotFoundError` if no process provides the function, :class:`NoDaemonError` if no daemon answers,
        :class:`TimedOutError`, :class:`IoError` if the provider ended during the call, and :class:`UnsupportedError` or
        :class:`InvalidError` for an argument that does not cross.
        """
        args, named = _checks.arguments(name, args, kwargs)
        log.debug("calling %s", name)

        def call(time_left: Callable[[], Optional[float]]) -> Any:
            return self._functions(time_left()).call(name, args, named, timeout=time_left())

        return self._retrying(call, name, self._retries(timeout, wait))

    def _by_attribute(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.call_function(name, args, kwargs)

    def __getattr__(self, name: str) -> RemoteFunction:
        # A client whose __init__ failed has no functions.
        if name.startswith("_") or "functions" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._retrying(lambda _: self.functions._directory.attribute(name))

    def __dir__(self) -> List[str]:
        try:
            return sorted({*super().__dir__(), *dir(self.functions)})
        except CotensorError:
            return sorted(super().__dir__())

    # -- look-ups -----------------------------------------

    def list_functions(self, prefix: str = "") -> List[Dict[str, Any]]:
        """The functions whose names start with ``prefix``, sorted. Each is a dict of name, summary, task (whether a call is a
        task), provider (its name) and epoch (of the provider)."""
        found = self._functions().list(_checks.text(prefix, "prefix"))
        return [
            {
                "name": each["function"]["name"],
                "summary": each["function"].get("summary", ""),
                "task": each["function"].get("task", False),
                "provider": each["provider"]["client"],
                "epoch": each["provider"]["epoch"],
            }
            for each in found
        ]

    def has_function(self, name: str) -> bool:
        """Whether a process provides the function ``name``."""
        return self._functions().provides(_checks.text(name, "name"))

    def ping(self) -> bool:
        """Whether the daemon answers. Without retries."""
        try:
            self._functions().list("\0")
            return True
        except OSError:
            return False

    # -- closing -----------------------------------------

    def close(self) -> None:
        """Releases all leases and the connection. Arrays stay readable."""
        with self._lock:
            store, self._store, self._native = self._store, None, None
            self._closed = True
        lifecycle.closed(self)
        if store is not None and store is not self._given:
            store.close()

    def ending(self) -> None:
        """Does nothing: an open client needs no warning."""

    def __enter__(self) -> "SharedTensorClient":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Pickles a handle for other processes of this user: the options of this client, without leases."""
        options = {
            "server_port": self.server_port,
            "timeout": self.timeout,
            "retry_count": self.retry_count,
            "wait": self.wait,
            "store": self._given,
            "socket": self._socket,
            "name": self._name,
            **self._values,
        }
        return open_client, (type(self), options)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self._native is not None else "not connected"
        return f"<{type(self).__name__} port {self.server_port}, {state}>"


__all__ = ["SharedTensorClient"]
