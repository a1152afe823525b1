"""Offering functions to other processes.

::

    from cotensor.provider import SharedTensorProvider

    provider = SharedTensorProvider()

    @provider.share(name="add_numbers")
    def add_numbers(a, b):
        return a + b

    provider.serve()                       # until Ctrl-C or SIGTERM

Any process of this user then calls ``SharedTensorClient().call_function("add_numbers", [1, 2])``. Tensors among
arguments and results, however deep in lists and dicts, stay where they are; their handles travel.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, NamedTuple, Optional, TypeVar, Union, overload

from .. import _checks
from .._native import Embedded, Provider, Store
from ..errors import ConflictError, InvalidError
from . import discovery, handlers, lifecycle, server_context
from .call_context import check_cancelled, current_call
from .discovery import Socket

if TYPE_CHECKING:
    from .client import SharedTensorClient

log = logging.getLogger("cotensor.provider")

F = TypeVar("F", bound=Callable[..., Any])

MODES = ("auto", "client", "server", "local")
#: The most threads for functions.
WORKERS_MAX = 4096
#: How long and how many results are kept with ``cache=True``: seconds, and results.
CACHE_TTL = 3600.0
CACHE_CAPACITY = 1024


class Shared(NamedTuple):
    """A function and how it is offered."""

    function: Callable[..., Any]
    options: Dict[str, Any]


def _cached(cache: Union[bool, Mapping[str, Any]]) -> Dict[str, Any]:
    if cache is False or cache is None:
        return {}
    if cache is True:
        return {"cache_ttl": CACHE_TTL, "cache_capacity": CACHE_CAPACITY}
    if not isinstance(cache, Mapping):
        raise InvalidError(
            f"cache: True, False or a dict of ttl and capacity is expected, not {cache!r}", field="cache"
        )
    unknown = set(cache) - {"ttl", "capacity"}
    if unknown:
        raise InvalidError(f"cache: {sorted(map(str, unknown))[0]!r} is neither ttl nor capacity", field="cache")
    return {
        "cache_ttl": _checks.seconds(cache.get("ttl"), "cache") or CACHE_TTL,
        "cache_capacity": _checks.count(cache.get("capacity", CACHE_CAPACITY), "cache"),
    }


class SharedTensorProvider:
    """Functions of this process that others call by name.

    A daemon introduces callers and providers: that of ``store`` or ``socket``, else of ``COTENSOR_SOCKET``, else the
    one whose HTTP port ``server_port`` is (2537 + ``RANK`` unless given). Where none runs, this process becomes the
    daemon of that port.

    ``execution_mode`` says what :meth:`share` does:

    ``server``
        offers each function at once; a name that another process offers is a :class:`~cotensor.errors.ConflictError`.
    ``auto``
        as ``server``, but a name that another process offers already is left to that one: a module of functions can be
        imported anywhere. In modules that ``shared-tensor-server`` loads, and with
        ``__SHARED_TENSOR_SERVER_MODE__=true``, it is ``server``.
    ``client``
        offers nothing: the decorated functions call the functions of that name of the process that does.
    ``local``
        offers nothing and needs no daemon: plain functions.

    Except in ``client`` mode the decorated function is what it was: calling it here runs it here.

    ``workers`` functions run at a time (one per core unless given); a task's result is kept for ``task_ttl`` seconds
    after it has ended. ``tensors`` says as what functions get tensors: ``torch``, ``numpy``, ``cotensor``, or ``auto``
    (torch's where torch is imported). With ``allow_pickle``, here and at the client, values of other types cross as
    pickles: only between processes of one user that trust each other, as unpickling can run anything.
    """

    def __init__(
        self,
        server_port: Optional[int] = None,
        *,
        store: Optional[Store] = None,
        socket: Optional[Socket] = None,
        execution_mode: str = "auto",
        workers: Optional[int] = None,
        task_ttl: Optional[float] = None,
        tasks_max: Optional[int] = None,
        waiting_max: Optional[int] = None,
        timeout: Optional[float] = None,
        tensors: str = "auto",
        allow_pickle: bool = False,
        name: Optional[str] = None,
        verbose_debug: bool = False,
    ) -> None:
        _checks.one_of(execution_mode, "execution_mode", MODES)
        asked = os.environ.get(server_context.VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")
        #: What :meth:`share` does: ``auto``, ``client``, ``server`` or ``local``.
        self.execution_mode = (
            "server" if execution_mode == "auto" and (asked or server_context.current is not None) else execution_mode
        )
        self.server_port = discovery.port_of(server_port)
        self._socket = _checks.path(socket, "socket")
        self._given = store
        self._name = _checks.named(name)
        self._workers = None if workers is None else _checks.count(workers, "workers", 1, WORKERS_MAX)
        self._timeout = _checks.seconds(timeout, "timeout")
        counts = {"tasks_max": tasks_max, "waiting_max": waiting_max}
        self._limits: Dict[str, Any] = {
            "task_ttl": _checks.seconds(task_ttl, "task_ttl"),
            **{field: _checks.count(value, field) for field, value in counts.items() if value is not None},
        }
        self._values: Dict[str, Any] = {
            "tensors": _checks.one_of(tensors, "tensors", _checks.TENSORS),
            "allow_pickle": _checks.truth(allow_pickle, "allow_pickle"),
        }
        self._registered_functions: Dict[str, Shared] = {}
        self._lock = threading.RLock()
        self._store: Optional[Store] = None
        self._embedded: Optional[Embedded] = None
        self._provider: Optional[Provider] = None
        self._client: Optional["SharedTensorClient"] = None
        self._caching = True
        # Whether a program waits for calls by itself.
        self._attended = False
        # What names a daemon of its own, or none, is not the server's.
        asks = store is None and socket is None and self.execution_mode == "server"
        self._server_context = server_context.current if asks else None
        if self._server_context is not None:
            self._server_context.providers.append(self)
        if verbose_debug:
            log.setLevel(logging.DEBUG)

    # -- sharing -----------------------------------------

    @overload
    def share(self, name: F) -> F: ...

    @overload
    def share(
        self,
        name: Optional[str] = None,
        *,
        cache: Union[bool, Mapping[str, Any]] = False,
        execution: str = "direct",
        concurrency: str = "parallel",
        singleflight: bool = False,
        managed: bool = False,
        timeout: Optional[float] = None,
    ) -> Callable[[F], F]: ...

    def share(
        self,
        name: Union[str, F, None] = None,
        *,
        cache: Union[bool, Mapping[str, Any]] = False,
        execution: str = "direct",
        concurrency: str = "parallel",
        singleflight: bool = False,
        managed: bool = False,
        timeout: Optional[float] = None,
    ) -> Any:
        """Offers the decorated function to other processes, under ``name`` or its own.

        ``cache`` keeps results for equal calls (``True``, or ``{"ttl": seconds, "capacity": results}``): calls are
        equal when their arguments are by content, whatever the tensors are called. ``singleflight`` runs equal calls at
        the same time once. ``concurrency="serialized"`` runs one call at a time. ``execution="task"`` enters every call
        among the tasks, where it can be listed and cancelled. ``managed`` keeps the result here, a model for instance:
        callers get a :class:`~cotensor.functions.RemoteObject`, whose methods they call and which they pass to other
        functions of this provider. ``timeout`` is the longest that one run may take, in seconds.
        """
        _checks.one_of(execution, "execution", ("direct", "task"))
        _checks.one_of(concurrency, "concurrency", ("parallel", "serialized"))
        options: Dict[str, Any] = {
            **_cached(cache),
            "execution": execution,
            "concurrency": concurrency,
            "singleflight": _checks.truth(singleflight, "singleflight"),
            "managed": _checks.truth(managed, "managed"),
            "timeout": _checks.seconds(timeout, "timeout"),
        }
        if callable(name):
            return self._shared(name, None, options)
        _checks.named(name)
        return lambda function: self._shared(function, name, options)

    def _shared(self, function: Any, name: Optional[str], options: Dict[str, Any]) -> Any:
        if not callable(function):
            raise InvalidError(f"function: {function!r} cannot be called", field="function")
        name = name or getattr(function, "__name__", None)
        if not name:
            raise InvalidError("name: this function has none of its own", field="name")
        with self._lock:
            if name in self._registered_functions:
                raise ConflictError(f"this provider offers {name!r} already", field="name")
            if self.execution_mode in ("server", "auto"):
                self._offer(name, Shared(function, options))
            self._registered_functions[name] = Shared(function, options)
        return self._elsewhere(name, function) if self.execution_mode == "client" else function

    def _handler(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if handlers.is_async(function):
            message = f"{name} is an async def: AsyncSharedTensorProvider runs those"
            raise InvalidError(message, field="function")
        return handlers.handler(name, function)

    def _offer(self, name: str, shared: Shared) -> None:
        handler = self._handler(name, shared.function)
        native = self._running()
        options = dict(shared.options)
        if options["timeout"] is None:
            options["timeout"] = self._timeout
        if not self._caching:
            options.pop("cache_ttl", None)
            options.pop("cache_capacity", None)
        try:
            native.add(name, handler, summary=handlers.describe(shared.function), with_call=True, **options)
            log.debug("offering %s", name)
        except ConflictError as error:
            if self.execution_mode == "server" or native.closed:
                raise
            log.warning("%s is offered by another process already, and left to it: %s", name, error)

    def _elsewhere(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._caller().call_function(name, args, kwargs)

        return call

    def _caller(self) -> "SharedTensorClient":
        from .client import SharedTensorClient

        with self._lock:
            if self._client is None:
                self._client = SharedTensorClient(
                    self.server_port, store=self._given, socket=self._socket, timeout=self._timeout, **self._values
                )
            return self._client

    # -- running -----------------------------------------

    def _running(self) -> Provider:
        with self._lock:
            if self._provider is None:
                workers = self._workers
                context = self._server_context
                if context is not None:
                    self._given, self._caching = context.store, context.cache
                    workers = workers or context.workers
                    self._timeout = self._timeout if self._timeout is not None else context.timeout
                if self._given is not None:
                    self._store = self._given
                else:
                    self._store, self._embedded = discovery.connect_or_embed(
                        self.server_port, self._socket, self._name
                    )
                self._provider = Provider(self._store, workers=workers, **self._limits, **self._values)
                lifecycle.opened(self)
            return self._provider

    def start(self) -> "SharedTensorProvider":
        """Connects to the daemon, or becomes it, and offers every function that is not offered yet."""
        if self.execution_mode in ("client", "local"):
            message = f"a provider in {self.execution_mode} mode offers nothing; execution_mode='server' does"
            raise ConflictError(message, field="execution_mode")
        self._attended = True
        with self._lock:
            if self._provider is not None and self._provider.closed:
                raise ConflictError("this provider is closed")
            fresh = self._provider is None
            self._running()
            if fresh:
                for name, shared in self._registered_functions.items():
                    self._offer(name, shared)
        return self

    def serve(self) -> None:
        """Offers the functions until SIGINT or SIGTERM, then closes. For the main thread.

        In a module that ``shared-tensor-server`` loads it returns at once: the server does the waiting.
        """
        self.start()
        if self._server_context is not None:
            return
        wait_for_signal(f"offering {len(self._registered_functions)} functions")
        self.close()

    def ending(self) -> None:
        """Warns when the program ends and takes functions with it that it never waited with."""
        provider = self._provider
        if provider is None or provider.closed or self._attended or self._server_context is not None:
            return
        if self._registered_functions:
            names = ", ".join(sorted(self._registered_functions))
            log.warning(
                "this program ends, and nobody offers %s any more: call serve() at its end, or run it with "
                "`shared-tensor-server FILE`",
                names,
            )

    def close(self) -> None:
        """Takes every function back, and ends the daemon if this process is it. What runs is not waited for."""
        with self._lock:
            provider, client = self._provider, self._client
            embedded, self._embedded = self._embedded, None
            store, self._client = self._store, None
        if provider is not None:
            provider.close()
        if client is not None:
            client.close()
        if store is not None and store is not self._given:
            store.close()
        if embedded is not None:
            embedded.close()
        lifecycle.closed(self)

    def remove(self, name: str) -> None:
        """Takes one function back. What runs runs on."""
        with self._lock:
            if self._provider is not None:
                self._provider.remove(name)
            self._registered_functions.pop(name, None)

    # -- looking -----------------------------------------

    @property
    def store(self) -> Store:
        """The store that arguments and results are in."""
        with self._lock:
            self._running()
            assert self._store is not None
            return self._store

    @property
    def epoch(self) -> int:
        """Tells this life of the provider from others."""
        return self._running().epoch

    @property
    def callers(self) -> int:
        """Callers that are connected now."""
        return self._running().callers

    @property
    def running(self) -> bool:
        """Whether the functions are offered."""
        return self._provider is not None and not self._provider.closed

    @property
    def embedded(self) -> bool:
        """Whether this process is the daemon."""
        return self._embedded is not None

    def list_functions(self) -> "list[str]":
        """The names that were shared here."""
        return sorted(self._registered_functions)

    def __enter__(self) -> "SharedTensorProvider":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind, count = type(self).__name__, len(self._registered_functions)
        state = "offering" if self.running else "not offering"
        return f"<{kind} {self.execution_mode}, port {self.server_port}, {state}, {count} functions>"


def wait_for_signal(what: str) -> None:
    """Waits for SIGINT or SIGTERM; their handlers are put back then. For the main thread."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        raise ConflictError("signals are heard by the main thread only: use start() and close() from others")
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        log.info("%s until SIGINT or SIGTERM", what)
        stop.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["SharedTensorProvider", "check_cancelled", "current_call"]
