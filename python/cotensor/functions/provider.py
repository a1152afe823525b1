"""Provides functions for other processes.

::

    from cotensor.provider import SharedTensorProvider

    provider = SharedTensorProvider()

    @provider.share(name="add_numbers")
    def add_numbers(a, b):
        return a + b

    provider.serve()                       # until Ctrl-C or SIGTERM

Any process of this user then calls ``SharedTensorClient().call_function("add_numbers", [1, 2])``. Tensors in arguments and
results, at any depth of lists and dicts, cross as handles, without a copy.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, NamedTuple, Optional, TypeVar, Union, overload

from .. import _checks
from .._forks import renewed
from .._native import Provider, Store
from ..errors import ConflictError, InvalidError, NotFoundError
from . import discovery, handlers, lifecycle, server_context
from .call_context import check_cancelled, current_call
from .discovery import Socket

if TYPE_CHECKING:
    from .client import SharedTensorClient

log = logging.getLogger("cotensor.provider")

F = TypeVar("F", bound=Callable[..., Any])

MODES = ("auto", "client", "server", "local")
#: The most worker threads.
WORKERS_MAX = 4096
#: The limits of ``cache=True``: in seconds, and in results.
CACHE_TTL = 3600.0
CACHE_CAPACITY = 1024


def _is_same(known: Callable[..., Any], function: Callable[..., Any]) -> bool:
    """Whether the second is another definition of the first: it has its module and its name there."""
    places = [(getattr(one, "__module__", None), getattr(one, "__qualname__", None)) for one in (known, function)]
    return places[0] == places[1] and places[0][1] is not None


class Shared(NamedTuple):
    """A function and its options."""

    function: Callable[..., Any]
    options: Dict[str, Any]


def _cached(cache: Union[bool, Mapping[str, Any]]) -> Dict[str, Any]:
    if cache is False or cache is None:
        return {}
    if cache is True:
        return {"cache_ttl": CACHE_TTL, "cache_capacity": CACHE_CAPACITY}
    if not isinstance(cache, Mapping):
        raise InvalidError(
            f"cache: pass True, False or a dict of ttl and capacity, not {cache!r}", field="cache"
        )
    unknown = set(cache) - {"ttl", "capacity"}
    if unknown:
        raise InvalidError(f"cache: unknown key {sorted(map(str, unknown))[0]!r}: pass ttl and capacity", field="cache")
    return {
        "cache_ttl": _checks.seconds(cache.get("ttl"), "cache") or CACHE_TTL,
        "cache_capacity": _checks.count(cache.get("capacity", CACHE_CAPACITY), "cache"),
    }


class SharedTensorProvider:
    """Provides functions of this process, which other processes call by name.

    A daemon connects callers and providers: the one of ``store`` or ``socket``, else of ``COTENSOR_SOCKET``, else that of
    ``server_port`` or ``RANK``, else the default one, which :func:`cotensor.connect` uses. If none runs, the provider starts it
    in the background; it outlives the provider.

    ``execution_mode`` is the mode of :meth:`share`:

    ``server``
        provides each function at once. A name that another process provides raises :class:`~cotensor.errors.ConflictError`.
    ``auto``
        as ``server``, but skips a name that another process provides, so that any process can import a module of functions. In
        modules that ``shared-tensor-server`` loads, and with ``__SHARED_TENSOR_SERVER_MODE__=true``, it means ``server``.
    ``client``
        provides nothing. The decorated functions call the functions of these names in their provider's process.
    ``local``
        provides nothing and needs no daemon. The decorated functions stay plain functions.

    In all modes but ``client``, a call of the decorated function in this process runs it in this process.

    At most ``workers`` functions run at a time, by default one per core. The provider keeps a task's result for ``task_ttl``
    seconds after its end. ``tensors`` is the type of tensors in arguments: ``torch``, ``numpy``, ``cotensor``, or ``auto``
    (torch's if torch is imported). With ``allow_pickle`` on both sides, values of other types cross as pickles. Use it only
    between processes that trust each other, because unpickling can run any code.
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
        is_server_process = os.environ.get(server_context.VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")
        #: The mode of :meth:`share`: ``auto``, ``client``, ``server`` or ``local``.
        self.execution_mode = (
            "server" if execution_mode == "auto" and (is_server_process or server_context.current is not None) else execution_mode
        )
        self.server_port = discovery.port_of(server_port)
        self._port = discovery.named_port(server_port)
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
        self._lock = renewed(self, "_lock", threading.RLock)
        self._store: Optional[Store] = None
        self._provider: Optional[Provider] = None
        self._client: Optional["SharedTensorClient"] = None
        self._caching = True
        # Whether the program called `start` or `serve`.
        self._attended = False
        # A provider with an explicit daemon, or without one, does not join the server.
        joins_server = store is None and socket is None and self.execution_mode == "server"
        self._server_context = server_context.current if joins_server else None
        if self._server_context is not None:
            self._server_context.join(self)
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
        """Provides the decorated function to other processes, under ``name`` or its own name.

        ``cache`` (``True``, or ``{"ttl": seconds, "capacity": results}``) keeps results for equal calls. Calls are equal if the
        contents of their arguments are; names of tensors do not matter. A call with a remote object always runs, because the
        object can change. ``singleflight`` runs concurrent equal calls once.
        ``concurrency="serialized"`` runs one call at a time. ``execution="task"`` makes every call a task, which clients can list
        and cancel. ``managed`` keeps the result, for example a model, in this process: callers get a
        :class:`~cotensor.functions.RemoteObject`, to call its methods and to pass it to functions of this process.
        ``timeout`` limits one run, in seconds.

        A function that is defined and shared again under the same name, as in a notebook, replaces the one before.
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
            raise InvalidError(f"function: pass a callable, not {function!r}", field="function")
        name = name or getattr(function, "__name__", None)
        if not name:
            raise InvalidError("name: the function has no name: pass one", field="name")
        with self._lock:
            known = self._registered_functions.get(name)
            if known is not None and not _is_same(known.function, function):
                message = f"this provider already provides {name!r}, another function: remove({name!r}) withdraws that one"
                raise ConflictError(message, field="name")
            if self.execution_mode in ("server", "auto"):
                self._provide(name, Shared(function, options), replace=known is not None)
            self._registered_functions[name] = Shared(function, options)
        return self._remote(name, function) if self.execution_mode == "client" else function

    def _handler(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if handlers.is_async(function):
            message = f"{name} is an async def: use AsyncSharedTensorProvider"
            raise InvalidError(message, field="function")
        return handlers.handler(name, function)

    def _invoker(self) -> Callable[..., Any]:
        return handlers.invoke

    def _provide(self, name: str, shared: Shared, *, replace: bool = False) -> None:
        handler = self._handler(name, shared.function)
        native = self._running()
        options = dict(shared.options)
        if options["timeout"] is None:
            options["timeout"] = self._timeout
        if not self._caching:
            options.pop("cache_ttl", None)
            options.pop("cache_capacity", None)
        options.update(summary=handlers.describe(shared.function), with_call=True)
        try:
            if replace:
                # Not provided yet: another process provided it before.
                with contextlib.suppress(NotFoundError):
                    native.add(name, handler, replace=True, **options)
                    log.info("provides %s anew", name)
                    return
            native.add(name, handler, **options)
            log.debug("provides %s", name)
        except ConflictError as error:
            if self.execution_mode == "server" or native.closed:
                raise
            log.warning("another process provides %s, so this one does not: %s", name, error)

    def _remote(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._caller().call_function(name, args, kwargs)

        return call

    def _caller(self) -> "SharedTensorClient":
        from .client import SharedTensorClient

        with self._lock:
            if self._client is None:
                self._client = SharedTensorClient(
                    self._port, store=self._given, socket=self._socket, timeout=self._timeout, **self._values
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
                    self._store = discovery.connect_or_start(self._port, self._socket, self._name)
                # Functions of all providers of this process accept each other's objects.
                others = (other._provider for other in lifecycle.opened_by_now() if isinstance(other, SharedTensorProvider))
                beside = next((other for other in others if other is not None and not other.closed), None)
                self._provider = Provider(
                    self._store, workers=workers, invoke=self._invoker(), beside=beside, **self._limits, **self._values
                )
                lifecycle.opened(self)
            return self._provider

    def start(self) -> "SharedTensorProvider":
        """Connects to the daemon, or starts one, and provides every function that is not provided yet."""
        if self.execution_mode in ("client", "local"):
            message = f"a provider in {self.execution_mode} mode provides nothing: use execution_mode='server'"
            raise ConflictError(message, field="execution_mode")
        self._attended = True
        with self._lock:
            if self._provider is not None and self._provider.closed:
                raise ConflictError("this provider is closed")
            fresh = self._provider is None
            self._running()
            if fresh:
                for name, shared in self._registered_functions.items():
                    self._provide(name, shared)
        return self

    def serve(self) -> None:
        """Provides the functions until SIGINT or SIGTERM, then closes. Call it in the main thread.

        In a module that ``shared-tensor-server`` loads it returns at once, and the server waits for the signal.
        """
        self.start()
        if self._server_context is not None:
            return
        wait_for_signal(f"providing {len(self._registered_functions)} functions")
        self.close()

    def ending(self) -> None:
        """Warns if the program ends without a call of ``start`` or ``serve``."""
        provider = self._provider
        if provider is None or provider.closed or self._attended or self._server_context is not None:
            return
        if self._registered_functions:
            names = ", ".join(sorted(self._registered_functions))
            log.warning(
                "this program ends, so no process provides %s any more: call serve() at its end, or run it with "
                "`shared-tensor-server FILE`",
                names,
            )

    def close(self) -> None:
        """Withdraws every function. Does not wait for running functions."""
        with self._lock:
            provider, client = self._provider, self._client
            store, self._client = self._store, None
        lifecycle.closed(self)
        # In reverse order. One that fails keeps none of the others open.
        with contextlib.ExitStack() as closing:
            if store is not None and store is not self._given:
                closing.callback(store.close)
            if client is not None:
                closing.callback(client.close)
            if provider is not None:
                closing.callback(provider.close)

    def remove(self, name: str) -> None:
        """Withdraws one function. Running calls continue."""
        with self._lock:
            if self._provider is not None:
                self._provider.remove(name)
            self._registered_functions.pop(name, None)

    # -- status -----------------------------------------

    @property
    def store(self) -> Store:
        """The store of arguments and results."""
        with self._lock:
            self._running()
            assert self._store is not None
            return self._store

    @property
    def epoch(self) -> int:
        """The number that identifies this start of the provider."""
        return self._running().epoch

    @property
    def callers(self) -> int:
        """The number of connected callers."""
        return self._running().callers

    @property
    def running(self) -> bool:
        """Whether this provider provides its functions."""
        return self._provider is not None and not self._provider.closed

    def list_functions(self) -> "list[str]":
        """The sorted names of the functions of this provider."""
        return sorted(self._registered_functions)

    def __enter__(self) -> "SharedTensorProvider":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind, count = type(self).__name__, len(self._registered_functions)
        state = "running" if self.running else "not running"
        return f"<{kind} {self.execution_mode}, port {self.server_port}, {state}, {count} functions>"


def wait_for_signal(what: str) -> None:
    """Waits for SIGINT or SIGTERM, then restores their handlers. Call it in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise ConflictError("only the main thread handles signals: use start() and close() in other threads")
    # A lock would miss a signal that arrives just before the main thread blocks, or that another thread handles.
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    before_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        log.info("%s until SIGINT or SIGTERM", what)
        while receiver.recv(1)[0] not in before:
            pass  # another signal with a handler
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_fd)
        receiver.close()
        sender.close()


__all__ = ["SharedTensorProvider", "check_cancelled", "current_call"]
