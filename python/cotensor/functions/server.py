"""A process that serves functions: ``shared-tensor-server``, ``python -m cotensor.server``.

::

    shared-tensor-server my_functions.py --port 2537 --workers 8

loads the module, whose :class:`~cotensor.provider.SharedTensorProvider` provides its functions, and serves until SIGINT or
SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import ipaddress
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .. import __version__, _checks, _native
from .._forks import renewed
from .._native import Provider, Store
from ..errors import ConflictError, CotensorError, InvalidError, NoDaemonError, NotFoundError
from . import discovery, lifecycle
from .discovery import Socket
from .provider import WORKERS_MAX, SharedTensorProvider, wait_for_signal
from .server_context import ServerContext, loading

log = logging.getLogger("cotensor.server")

_MIB = 1 << 20
#: The options of the command for the arguments of :class:`SharedTensorServer`.
_OPTIONS = {
    "allow_hosts": "--allow-host",
    "host": "--host",
    "max_memory_mb": "--max-memory",
    "max_workers": "--workers",
    "port": "--port",
    "timeout": "--timeout",
    "token_file": "--token-file",
}


class SharedTensorServer:
    """Functions, and the daemon's HTTP at ``host`` and ``port``.

    The server uses the daemon at ``socket`` or at ``COTENSOR_SOCKET``, else that of ``port``. If none runs, it starts one in the
    background, which outlives the server. ``port`` is 2537 + ``RANK`` by default, or 2537 if ``GPUS_PER_NODE`` is set, because
    all ranks then share one server. HTTP clients need the token in :attr:`token_file`. A second server at a port raises
    :class:`~cotensor.errors.ConflictError`, and so do a ``port`` that another program has, and options that differ from those of
    a daemon that runs already.

    ``timeout`` is the default time limit of one run of a function in seconds; ``None`` means no limit. At most ``max_workers``
    functions of a provider run at a time. With ``enable_cache=False`` no function caches results.

    Functions come from modules (:meth:`load`) or from :meth:`share`, which works like a provider's.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: Optional[int] = None,
        timeout: Optional[float] = 30,
        max_workers: int = 4,
        enable_cache: bool = True,
        debug: bool = False,
        *,
        socket: Optional[Socket] = None,
        token_file: Optional[Socket] = None,
        allow_hosts: Optional[List[str]] = None,
        max_memory_mb: Optional[int] = None,
        allow_pickle: bool = False,
        tensors: str = "auto",
        name: Optional[str] = None,
    ) -> None:
        self.host = _address(host)
        self.port = discovery.port_of(port, "port")
        self.timeout = _checks.seconds(timeout, "timeout")
        self.max_workers = _checks.count(max_workers, "max_workers", 1, WORKERS_MAX)
        self.enable_cache = _checks.truth(enable_cache, "enable_cache")
        self.debug = debug
        self._socket = _checks.path(socket, "socket")
        # Whether the program named the port; 0 accepts any.
        self._is_port_named = bool(port)
        self._port = discovery.named_port(self.port)
        # Options of a new daemon.
        self._options: Dict[str, Any] = {
            "token_file": None if token_file is None else os.path.abspath(token_file),
            "allow_hosts": allow_hosts,
            "max_memory_mb": max_memory_mb,
        }
        self._name = name or "shared-tensor-server"
        #: The provider of functions that :meth:`share` decorates.
        self.provider = SharedTensorProvider(
            self.port,
            execution_mode="local",
            workers=max_workers,
            timeout=timeout,
            allow_pickle=allow_pickle,
            tensors=tensors,
        )
        self.provider._caching = enable_cache
        self._lock = renewed(self, "_lock", threading.RLock)
        self._store: Optional[Store] = None
        self._marker: Optional[Provider] = None
        self._loaded: List[SharedTensorProvider] = []
        self._stopped = False
        # Address and token file of the daemon's HTTP.
        self._http: Optional[Tuple[str, str]] = None
        if debug:
            logging.getLogger("cotensor").setLevel(logging.DEBUG)

    def share(self, name: Any = None, **options: Any) -> Any:
        """Provides the decorated function; see :meth:`SharedTensorProvider.share
        <cotensor.provider.SharedTensorProvider.share>`."""
        return self.provider.share(name, **options)

    # -- running -----------------------------------------

    def start(self) -> "SharedTensorServer":
        """Serves on threads of this process. Raises :class:`ConflictError` if this server, or another one at the port, runs."""
        with self._lock:
            if self._store is not None:
                raise ConflictError(f"this server already runs at port {self.port}", field="port")
            if self._stopped:
                raise ConflictError("this server was stopped: create another one")
            store, is_new = self._connect()
            try:
                self._http = self._listening(store, is_new)
                marker = self._register(store)
            except BaseException:
                self._http = None
                store.close()
                raise
            self._store, self._marker = store, marker
            lifecycle.opened(self)
            self.provider._given, self.provider._attended = store, True
            self.provider.execution_mode = "server"
            try:
                self.provider.start()
            except BaseException:
                self.stop()
                raise
        return self

    def _connect(self) -> Tuple[Store, bool]:
        """The daemon's store, and whether this server started the daemon."""
        try:
            return Store.connect(self._socket, port=self._port, client=self._name, autostart=False), False
        except ConflictError as error:
            raise self._taken(error) from error
        except NoDaemonError:
            socket = _native.own_socket(self._socket, self._port)
        _native.start_daemon(socket, self._arguments())
        return Store.connect(socket, client=self._name, autostart=False), True

    def _arguments(self) -> List[str]:
        """The arguments of a new daemon. HTTP on loopback is turned on later, so that its errors are those of a running one."""
        options = self._options
        arguments: List[str] = []
        if self.host != "127.0.0.1" or options["token_file"] or options["allow_hosts"]:
            arguments += ["--listen", f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"]
        if options["token_file"]:
            arguments += ["--token-file", options["token_file"]]
        for host in options["allow_hosts"] or []:
            arguments += ["--allow-host", host]
        if options["max_memory_mb"] is not None:
            arguments += ["--max-memory", f"{options['max_memory_mb']}MiB"]
        return arguments

    def _listening(self, store: Store, is_new: bool) -> Tuple[str, str]:
        """Turns the daemon's HTTP on; its address and token file. Refuses a running daemon with other options."""
        try:
            address, token_file = store.listen_http(self.port)
        except ConflictError as error:
            raise self._taken(error) from error
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        differing = {
            "host": self.host not in ("127.0.0.1", host),
            "port": self._is_port_named and self.port != int(port),
            "token_file": self._options["token_file"] not in (None, str(token_file)),
            "allow_hosts": self._options["allow_hosts"] is not None and not is_new,
            "max_memory_mb": self._options["max_memory_mb"] is not None and not is_new,
        }
        for field in (field for field, differs in differing.items() if differs):
            message = (
                f"{field}: the running daemon at {store.socket} does not have this option: stop that daemon, or omit the option"
            )
            raise ConflictError(message, field=field)
        self.port = self.port or int(port)
        return address, str(token_file)

    def _taken(self, error: ConflictError) -> ConflictError:
        return ConflictError(f"port {self.port} is not available: {error}", field="port")

    def _register(self, store: Store) -> Provider:
        # The daemon accepts a name once, so a port has one server.
        marker = Provider(store, workers=1)
        pid = os.getpid()
        try:
            marker.add(
                f"server/{self.port}", lambda: {"pid": pid, "version": __version__}, summary="The server of this port"
            )
        except ConflictError as error:
            marker.close()
            raise ConflictError(f"a server already runs at port {self.port}", field="port") from error
        return marker

    def load(self, module: str) -> ModuleType:
        """Imports a module by its name or its file, and provides the functions of its providers."""
        with self._lock:
            if self._store is None:
                self.start()
            assert self._store is not None
            context = ServerContext(self._store, self.max_workers, self.timeout, self.enable_cache, self._loaded.append)
            with loading(context):
                loaded = _import(module)
        for provider in self._loaded:
            if not provider.running:
                provider.start()
        return loaded

    def _names_of(self, module: str) -> List[str]:
        """Loads a module, and returns the names that it provides."""
        before = set(self.list_functions())
        self.load(module)
        return sorted(set(self.list_functions()) - before)

    def serve_forever(self) -> None:
        """Serves until SIGINT or SIGTERM, then stops. Call it in the main thread."""
        with self._lock:
            if self._store is None:
                self.start()
        try:
            wait_for_signal(f"serving on {self.socket}" + (f", HTTP at {self.url}" if self.url else ""))
        finally:
            self.stop()

    def stop(self) -> None:
        """Withdraws the functions. Does not wait for running functions. The daemon ends when it is idle."""
        with self._lock:
            store, self._store = self._store, None
            marker, self._marker = self._marker, None
            self._stopped = self._stopped or store is not None
            self._http = None
        lifecycle.closed(self)
        # In reverse order. One that fails keeps none of the others open.
        with contextlib.ExitStack() as closing:
            if store is not None:
                closing.callback(store.close)
            if marker is not None:
                closing.callback(marker.close)
            for provider in (self.provider, *self._loaded):
                closing.callback(provider.close)

    close = stop

    def ending(self) -> None:
        """Does nothing: a server needs no warning."""

    # -- status -----------------------------------------

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._store is not None

    @property
    def url(self) -> Optional[str]:
        """The URL of the daemon's HTTP; ``None`` while the server is stopped."""
        return None if self._http is None else f"http://{self._http[0]}"

    @property
    def socket(self) -> Optional[str]:
        """The daemon's Unix socket; ``None`` while the server is stopped."""
        return None if self._store is None else str(self._store.socket)

    @property
    def token_file(self) -> Optional[str]:
        """The file with the token for HTTP clients; ``None`` while the server is stopped."""
        return None if self._http is None else self._http[1]

    def list_functions(self) -> List[str]:
        """The sorted names of the functions of this server."""
        names = set(self.provider.list_functions())
        for provider in self._loaded:
            names.update(provider.list_functions())
        return sorted(names)

    def __enter__(self) -> "SharedTensorServer":
        with self._lock:
            return self if self._store is not None else self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<SharedTensorServer port {self.port}, {'running' if self.running else 'not running'}>"


def _address(host: str) -> str:
    try:
        return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError as error:
        raise InvalidError(f"host: {host!r} is not an address such as 127.0.0.1 or ::1", field="host") from error


def _import(module: str) -> ModuleType:
    if not module.endswith(".py") and os.sep not in module:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
                raise
            raise NotFoundError(
                f"no module {module!r}: pass a name, or a file that ends in .py", field="module"
            ) from error
    path = Path(module).resolve()
    if not path.is_file():
        raise NotFoundError(f"no file {module}", file=str(path))
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidError(f"{module} is not a Python file", file=str(path))
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def _argument(parse: Any, text: str, option: str) -> Any:
    try:
        return parse(text, option)
    except InvalidError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix(f"{option}: ")) from error


def _message(error: CotensorError) -> str:
    """An error's text, with options instead of the arguments of :class:`SharedTensorServer`."""
    text, field = str(error), error.field or ""
    if field in _OPTIONS and text.startswith(f"{field}: "):
        return _OPTIONS[field] + text[len(field) :]
    return text


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "shared-tensor-server", description="Serve the functions of Python modules to other processes of this machine."
    )
    parser.add_argument(
        "modules", nargs="*", help="modules with a SharedTensorProvider: names, or files that end in .py"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address of the HTTP server")
    parser.add_argument("--port", type=int, help="the HTTP port (default: 2537 + RANK)")
    parser.add_argument("--socket", help="the Unix socket of the daemon (default: COTENSOR_SOCKET)")
    parser.add_argument(
        "--workers", "--max-workers", type=int, default=4, help="the most functions that run at a time (default: 4)"
    )
    parser.add_argument(
        "--timeout",
        type=lambda text: _argument(_native.parse_time, text, "--timeout"),
        default=30,
        metavar="TIME",
        help="the time limit of one run, such as 2min; 0 for none (default: 30s)",
    )
    parser.add_argument("--no-cache", action="store_true", help="disable the result caches of all functions")
    parser.add_argument(
        "--max-memory",
        type=lambda text: -(-_argument(_native.parse_size, text, "--max-memory") // _MIB),
        metavar="SIZE",
        help="the memory limit of all tensors, such as 4GiB, if this command starts the daemon",
    )
    parser.add_argument("--token-file", help="the file with the token for HTTP clients")
    parser.add_argument("--allow-host", action="append", metavar="NAME", help="a host name that HTTP clients may use")
    parser.add_argument(
        "--allow-pickle", action="store_true", help="let values of other types cross as pickles, for share()"
    )
    parser.add_argument("--debug", action="store_true", help="log more")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def _stop(*_: object) -> None:
    raise SystemExit(0)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command ``shared-tensor-server``; its exit code."""
    options = _arguments().parse_args(argv)
    # Before the modules load, which may take long.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    logging.basicConfig(level=logging.DEBUG if options.debug else logging.INFO, format="%(levelname)s %(message)s")
    try:
        server = SharedTensorServer(
            options.host,
            options.port,
            options.timeout or None,
            options.workers,
            not options.no_cache,
            options.debug,
            socket=options.socket,
            token_file=options.token_file,
            allow_hosts=options.allow_host,
            max_memory_mb=options.max_memory,
            allow_pickle=options.allow_pickle,
        )
        with server:
            for module in options.modules:
                if not server._names_of(module):
                    log.warning("%s provides no functions: it has no SharedTensorProvider that shares any", module)
            names = server.list_functions()
            if server.token_file is not None:
                log.info("HTTP clients need the token in %s", server.token_file)
            if names:
                log.info("%d functions: %s", len(names), ", ".join(names))
            elif not options.modules:
                log.info("no functions: the daemon serves providers in other processes")
            server.serve_forever()
    except CotensorError as error:
        print(f"error: {_message(error)}", file=sys.stderr)
        return 1 if isinstance(error, OSError) and not isinstance(error, PermissionError) else 2
    return 0


__all__ = ["SharedTensorServer", "main"]
