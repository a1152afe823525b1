"""A process that serves functions: ``shared-tensor-server``, ``python -m cotensor.server``.

::

    shared-tensor-server my_functions.py --port 2537 --workers 8

loads the module, whose :class:`~cotensor.provider.SharedTensorProvider` provides its functions, and serves until SIGINT or
SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence

from .. import __version__, _checks
from .._native import Embedded, Provider, Store
from ..errors import ConflictError, CotensorError, InvalidError, NotFoundError
from . import discovery, lifecycle
from .discovery import Socket
from .provider import WORKERS_MAX, SharedTensorProvider, wait_for_signal
from .server_context import ServerContext, loading

log = logging.getLogger("cotensor.server")


class SharedTensorServer:
    """A daemon with HTTP at ``host`` and ``port``, and functions.

    The server joins the daemon at that port, at ``socket`` or at ``COTENSOR_SOCKET``. Without a daemon, this process runs one.
    ``port`` is 2537 + ``RANK`` by default, or 2537 if ``GPUS_PER_NODE`` is set, because all ranks then share one server. HTTP
    clients need the token in :attr:`token_file`. A second server at a port raises :class:`~cotensor.errors.ConflictError`, and so
    does a ``port`` at which the daemon of an explicit socket does not answer.

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
        self.host = "127.0.0.1" if host == "localhost" else host
        self.port = discovery.port_of(port, "port")
        self.timeout = _checks.seconds(timeout, "timeout")
        self.max_workers = _checks.count(max_workers, "max_workers", 1, WORKERS_MAX)
        self.enable_cache = _checks.truth(enable_cache, "enable_cache")
        self.debug = debug
        self._socket = _checks.path(socket, "socket")
        # With an explicit socket, the daemon at that socket has to have HTTP at the port. 0 accepts any port.
        self._explicit_port = bool(port) and discovery.named(self._socket) is not None
        self._embedding: Dict[str, Any] = {
            "token_file": token_file,
            "hosts": allow_hosts,
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
        self._lock = threading.RLock()
        self._store: Optional[Store] = None
        self._embedded: Optional[Embedded] = None
        self._marker: Optional[Provider] = None
        self._loaded: List[SharedTensorProvider] = []
        self._stopped = False
        self._answers = False
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
            store, embedded = discovery.connect_or_embed(
                self.port, self._socket, self._name, host=self.host, **self._embedding
            )
            try:
                self._answers = embedded is not None or self._is_answered_by(store)
                if embedded is None:
                    self._refuse_options_of_a_daemon(store)
                elif embedded.http is not None:
                    self.port = int(embedded.http.rsplit(":", 1)[1])
                marker = self._register(store)
            except BaseException:
                self._answers = False
                store.close()
                if embedded is not None:
                    embedded.close()
                raise
            self._store, self._embedded, self._marker = store, embedded, marker
            lifecycle.opened(self)
            self.provider._given, self.provider._attended = store, True
            self.provider.execution_mode = "server"
            try:
                self.provider.start()
            except BaseException:
                self.stop()
                raise
        return self

    def _refuse_options_of_a_daemon(self, store: Store) -> None:
        """Raises for options that have no effect on a running daemon."""
        given = {
            "host": None if self.host == "127.0.0.1" else self.host,
            "port": self.port if self._explicit_port and not self._answers else None,
            **self._embedding,
        }
        names = {"hosts": "allow_hosts"}
        for field, value in given.items():
            if value is not None:
                field = names.get(field, field)
                message = (
                    f"{field}: the running daemon at {store.socket} does not have this option: stop that daemon, or omit "
                    "the option"
                )
                raise ConflictError(message, field=field)

    def _is_answered_by(self, store: Store) -> bool:
        try:
            return str(discovery.answering(self.port)) == str(store.socket)
        except CotensorError:
            return False  # another program uses the port

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
            context = ServerContext(self._store, self.max_workers, self.timeout, self.enable_cache, self._loaded)
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
        """Withdraws the functions, and stops the daemon if this process runs it. Does not wait for running functions."""
        with self._lock:
            store, self._store = self._store, None
            embedded, self._embedded = self._embedded, None
            marker, self._marker = self._marker, None
            self._stopped = self._stopped or store is not None
            self._answers = False
        for provider in (*reversed(self._loaded), self.provider):
            provider.close()
        if marker is not None:
            marker.close()
        if store is not None:
            store.close()
        if embedded is not None:
            embedded.close()
        lifecycle.closed(self)

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
        """The URL of the daemon's HTTP; ``None`` while the server is stopped, or if a joined daemon has none at the port."""
        if not self._answers:
            return None
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def socket(self) -> Optional[str]:
        """The daemon's Unix socket; ``None`` while the server is stopped."""
        return None if self._store is None else str(self._store.socket)

    @property
    def token_file(self) -> Optional[str]:
        """The file with the token for HTTP clients; ``None`` if another process runs the daemon."""
        return None if self._embedded is None or self._embedded.token_file is None else str(self._embedded.token_file)

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


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "shared-tensor-server", description="Serve the functions of Python modules to other processes of this machine."
    )
    parser.add_argument(
        "modules", nargs="*", help="modules with a SharedTensorProvider: names, or files that end in .py"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address of the HTTP server")
    parser.add_argument("--port", type=int, help="the HTTP port (default: 2537 + RANK)")
    parser.add_argument("--socket", help="the Unix socket of the daemon to join or to run (default: COTENSOR_SOCKET)")
    parser.add_argument(
        "--workers", "--max-workers", type=int, default=4, help="the most functions that run at a time (default: 4)"
    )
    parser.add_argument(
        "--timeout", type=float, default=30, help="the time limit of one run in seconds; 0 for none (default: 30)"
    )
    parser.add_argument("--no-cache", action="store_true", help="disable the result caches of all functions")
    parser.add_argument(
        "--max-memory", type=int, metavar="MIB", help="the memory limit of all tensors, if this process runs the daemon"
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
                log.info("no functions: this is a daemon for providers in other processes")
            server.serve_forever()
    except CotensorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, OSError) and not isinstance(error, PermissionError) else 2
    return 0


__all__ = ["SharedTensorServer", "main"]
