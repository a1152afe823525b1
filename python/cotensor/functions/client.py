"""Calling functions of other processes.

::

    from cotensor.client import SharedTensorClient

    with SharedTensorClient() as client:
        client.call_function("add_numbers", [10, 20])
        client.add_numbers(10, 20)                       # the same
        model = client.call_function("create_model")     # a managed result: a reference to an object that stays there
        client.call_function("model_inference", [model, x])
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar

from .. import _checks, _native
from .._handles import open_client
from .._native import Store
from ..errors import ConflictError, CotensorError, InvalidError, NoDaemonError, NotFoundError, RemoteError
from . import discovery, lifecycle
from .directory import Directory, Functions, RemoteFunction
from .discovery import Socket

log = logging.getLogger("cotensor.client")

T = TypeVar("T")

#: The pause before the first time that something is tried again, in seconds; each further one is twice as long.
PAUSE = 0.1


def not_called(error: BaseException) -> bool:
    """Whether nothing was called: no daemon is there, or nobody offers that function (yet)."""
    if isinstance(error, NoDaemonError):
        return True
    if isinstance(error, RemoteError) or not isinstance(error, NotFoundError):
        return False
    return error.field in ("name", "function")


class SharedTensorClient:
    """Calls functions of other processes by name.

    The daemon is that of ``store`` or ``socket``, else of ``COTENSOR_SOCKET``, else the one whose HTTP port
    ``server_port`` is (2537 + ``RANK`` unless given). It is looked for when first needed.

    ``timeout`` is how long a call may take, in seconds, for calls that say nothing else; ``None`` is as long as it
    takes. It counts from the look-up of the function to the answer. The provider stops a call whose time is over, and the caller
    gets a :class:`~cotensor.errors.TimedOutError` that names the provider, also when the provider does not answer at all.
    ``retry_count`` is how often it is tried again when there is no daemon or nobody offers the function (a server that
    is starting): nothing was called then. A call that may have run is never repeated.

    ``tensors`` says as what tensors of results come: ``torch``, ``numpy``, ``cotensor``, or ``auto`` (torch's where
    torch is imported, else numpy's where that is installed). For ``allow_pickle`` see
    :class:`~cotensor.provider.SharedTensorProvider`.

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
    ) -> None:
        self.server_port = discovery.port_of(server_port)
        self.timeout = _checks.seconds(timeout, "timeout")
        self.retry_count = _checks.count(retry_count, "retry_count")
        self._socket = _checks.path(socket, "socket")
        self._given = store
        self._name = _checks.named(name)
        self._values: Dict[str, Any] = {
            "tensors": _checks.one_of(tensors, "tensors", _checks.TENSORS),
            "allow_pickle": _checks.truth(allow_pickle, "allow_pickle"),
        }
        self._lock = threading.Lock()
        self._store: Optional[Store] = None
        self._native: Optional[_native.Functions] = None
        self._closed = False
        #: The functions of all providers: ``client.functions.add(1, 2)``, ``client.functions["model.run"](…)``.
        self.functions = Functions(Directory(self._by_attribute, self.has_function, self.list_functions))
        if verbose_debug:
            logging.basicConfig()
            logging.getLogger("cotensor").setLevel(logging.DEBUG)

    def _functions(self, timeout: Optional[float] = None) -> _native.Functions:
        with self._lock:
            if self._closed:
                raise ConflictError("this client is closed")
            if self._native is None:
                self._store = self._given or discovery.connect(
                    self.server_port, self._socket, self._name, self.timeout if timeout is None else timeout
                )
                self._native = _native.Functions(self._store, timeout=self.timeout, **self._values)
                lifecycle.opened(self)
                log.debug("connected to %s", self._store.socket)
            return self._native

    @property
    def store(self) -> Store:
        """The store that arguments and results are in."""
        self._functions()
        assert self._store is not None
        return self._store

    def _patiently(self, act: Callable[[Callable[[], Optional[float]]], T], name: str = "", timeout: Optional[float] = None) -> T:
        """Does ``act``, which can ask for the time that is left for it; again, after a pause, while nothing was called.

        A function that nobody offers is not waited for when one of a similar name is there, nor past the timeout.
        """
        end = None if timeout is None else time.monotonic() + timeout

        def time_left() -> Optional[float]:
            return None if end is None else max(0.0, end - time.monotonic())

        pause = PAUSE
        for left in range(self.retry_count, -1, -1):
            try:
                return act(time_left)
            except (NotFoundError, NoDaemonError) as error:
                if not not_called(error):
                    raise
                if isinstance(error, NotFoundError) and name:
                    suggestion = self._suggestion(name)
                    if suggestion:
                        raise NotFoundError(f"{error}{suggestion}", field="name") from None
                if not left or (end is not None and time.monotonic() + pause >= end):
                    raise
                log.debug("trying again in %.1f s: %s", pause, error)
            time.sleep(pause)
            pause *= 2
        raise AssertionError("the last attempt returns or raises")

    def _suggestion(self, name: str) -> str:
        try:
            return self.functions._directory.suggestion(name)
        except CotensorError:
            return ""  # the error that it would be part of says more

    # -- calls -----------------------------------------

    def call_function(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        *,
        timeout: Optional[float] = None,
    ) -> Any:
        """Calls the function ``name`` with these arguments and waits for its result, for at most ``timeout`` seconds
        (the client's, unless given).

        Arguments are numbers, texts, bytes, lists, tuples, dicts with texts as keys, tensors (of torch, numpy, JAX or
        this package) and remote objects. Tensors that are in the store already travel as they are; others are put there
        first.

        Raises what the function raised (:class:`~cotensor.errors.RemoteError`, which is also a ``ValueError`` if that
        was one), :class:`NotFoundError` when no process offers the function, :class:`NoDaemonError` when no daemon answers,
        :class:`TimedOutError`, :class:`IoError` when its provider ended meanwhile, :class:`UnsupportedError` or
        :class:`InvalidError` for an argument that does not cross.
        """
        args, named = arguments(name, args, kwargs)
        limit = self.timeout if timeout is None else _checks.seconds(timeout, "timeout")
        log.debug("calling %s", name)

        def call(time_left: Callable[[], Optional[float]]) -> Any:
            return self._functions(time_left()).call(name, args, named, timeout=time_left())

        return self._patiently(call, name, limit)

    def _by_attribute(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.call_function(name, args, kwargs)

    def __getattr__(self, name: str) -> RemoteFunction:
        # A client whose __init__ failed has no functions.
        if name.startswith("_") or "functions" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._patiently(lambda _: self.functions._directory.attribute(name))

    def __dir__(self) -> List[str]:
        try:
            return sorted({*super().__dir__(), *dir(self.functions)})
        except CotensorError:
            return sorted(super().__dir__())

    # -- looking -----------------------------------------

    def list_functions(self, prefix: str = "") -> List[Dict[str, Any]]:
        """The functions whose names start with ``prefix``, in their order: dicts of name, summary, task (whether a call
        is one), provider (who offers it) and epoch (which life of that)."""
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
        """Whether somebody offers ``name``."""
        return self._functions().provides(_checks.text(name, "name"))

    def ping(self) -> bool:
        """Whether the daemon is there. Never tries twice."""
        try:
            self._functions().list("\0")
            return True
        except OSError:
            return False

    # -- its life -----------------------------------------

    def close(self) -> None:
        """Lets go of everything: what this client leased is given back. Arrays stay readable."""
        with self._lock:
            store, self._store, self._native = self._store, None, None
            self._closed = True
        if store is not None and store is not self._given:
            store.close()
        lifecycle.closed(self)

    def ending(self) -> None:
        """Does nothing: a client may be left open."""

    def __enter__(self) -> "SharedTensorClient":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """A handle, for other processes of this user: the options of this client, and nothing that it leases."""
        options = {
            "server_port": self.server_port,
            "timeout": self.timeout,
            "retry_count": self.retry_count,
            "store": self._given,
            "socket": self._socket,
            "name": self._name,
            **self._values,
        }
        return open_client, (type(self), options)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self._native is not None else "not connected"
        return f"<{type(self).__name__} port {self.server_port}, {state}>"


def arguments(
    name: str, args: Sequence[Any], kwargs: Optional[Mapping[str, Any]]
) -> "tuple[Sequence[Any], Optional[Dict[str, Any]]]":
    """Arguments as they are passed on; what is none gives an error that says so."""
    if not isinstance(name, str) or not name:
        raise InvalidError(f"name: a function's name is expected, not {name!r}", field="name")
    if isinstance(args, (str, bytes)) or not isinstance(args, (list, tuple)):
        raise InvalidError(f"args: a list or a tuple of arguments is expected, not {type(args).__name__}", field="args")
    if kwargs is None:
        return args, None
    if not isinstance(kwargs, Mapping):
        raise InvalidError(
            f"kwargs: a dict of arguments by name is expected, not {type(kwargs).__name__}", field="kwargs"
        )
    wrong = [key for key in kwargs if not isinstance(key, str)]
    if wrong:
        raise InvalidError(f"kwargs: {wrong[0]!r} is no name of an argument", field="kwargs")
    return args, dict(kwargs)


__all__ = ["SharedTensorClient"]
