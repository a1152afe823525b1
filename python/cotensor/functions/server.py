"""Serving functions from a process of its own: ``shared-tensor-server``, ``python -m cotensor.server``.

::

    shared-tensor-server my_functions.py --port 2537 --workers 8

loads the module, whose :class:`~cotensor.provider.SharedTensorProvider` offers its functions, and serves until SIGINT
or SIGTERM.
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

    The daemon is the one that answers there, or that of ``socket`` or ``COTENSOR_SOCKET``; where none is, this process
    becomes it. ``port`` is 2537 + ``RANK`` unless given (2537 where ``GPUS_PER_NODE`` says that one server is for all
    devices). HTTP clients need the token in :attr:`token_file`. One server runs at a port: a second one
    is a :class:`~cotensor.errors.ConflictError`, and so is a ``port`` at which the daemon at a given socket does not answer.

    ``timeout`` is the longest that one run of a function may take, in seconds, unless the function says otherwise
    (``None``: as long as it takes); ``max_workers`` functions of a provider run at a time. With ``enable_cache=False``
    no results are kept, whatever the functions say; none are kept unless they say so.

    Functions come from modules (:meth:`load`), or from :meth:`share`, which decorates as a provider's does.
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
        # A port finds a daemon, unless a socket does: then the daemon at that socket has to answer HTTP at the port. 0 is any.
        self._asked_port = bool(port) and discovery.named(self._socket) is not None
        self._embedding: Dict[str, Any] = {
            "token_file": token_file,
            "hosts": allow_hosts,
            "max_memory_mb": max_memory_mb,
        }
        self._name = name or "shared-tensor-server"
        #: The provider of what :meth:`share` decorates.
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
        self._mark: Optional[Provider] = None
        self._loaded: List[SharedTensorProvider] = []
        self._stopped = False
        self._answers = False
        if debug:
            logging.getLogger("cotensor").setLevel(logging.DEBUG)

    def share(self, name: Any = None, **options: Any) -> Any:
        """Offers the decorated function; see :meth:`SharedTensorProvider.share
        <cotensor.provider.SharedTensorProvider.share>`."""
        return self.provider.share(name, **options)

    # -- running -----------------------------------------

    def start(self) -> "SharedTensorServer":
        """Serves, on threads of this process. Raises :class:`ConflictError` when it runs, or another server does
        there."""
        with self._lock:
            if self._store is not None:
                raise ConflictError(f"this server runs already, at port {self.port}", field="port")
            if self._stopped:
                raise ConflictError("this server was stopped: make another one")
            store, embedded = discovery.connect_or_embed(
                self.port, self._socket, self._name, host=self.host, **self._embedding
            )
            try:
                self._answers = embedded is not None or self._is_answered_by(store)
                if embedded is None:
                    self._refuse_options_of_a_daemon(store)
                elif embedded.http is not None:
                    self.port = int(embedded.http.rsplit(":", 1)[1])
                mark = self._marked(store)
            except BaseException:
                self._answers = False
                store.close()
                if embedded is not None:
                    embedded.close()
                raise
            self._store, self._embedded, self._mark = store, embedded, mark
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
        """A daemon that runs already has options of its own: none of ours would have an effect."""
        given = {
            "host": None if self.host == "127.0.0.1" else self.host,
            "port": self.port if self._asked_port and not self._answers else None,
            **self._embedding,
        }
        names = {"hosts": "allow_hosts"}
        for field, value in given.items():
            if value is not None:
                field = names.get(field, field)
                message = (
                    f"{field}: a daemon runs at {store.socket} already, without this option: stop that daemon, or leave "
                    "the option out"
                )
                raise ConflictError(message, field=field)

    def _is_answered_by(self, store: Store) -> bool:
        try:
            return str(discovery.answering(self.port)) == str(store.socket)
        except CotensorError:
            return False  # something that is no daemon

    def _marked(self, store: Store) -> Provider:
        # One server of a port: the name can be taken once.
        mark = Provider(store, workers=1)
        pid = os.getpid()
        try:
            mark.add(
                f"server/{self.port}", lambda: {"pid": pid, "version": __version__}, summary="The server of this port"
            )
        except ConflictError as error:
            mark.close()
            raise ConflictError(f"a server runs at port {self.port} already", field="port") from error
        return mark

    def load(self, module: str) -> ModuleType:
        """Imports a module, by its name or its file, whose providers offer their functions from here on."""
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
        """Loads a module; the names that it offers."""
        before = set(self.list_functions())
        self.load(module)
        return sorted(set(self.list_functions()) - before)

    def serve_forever(self) -> None:
        """Serves until SIGINT or SIGTERM, then stops. For the main thread."""
        with self._lock:
            if self._store is None:
                self.start()
        try:
            wait_for_signal(f"serving on {self.socket}" + (f", HTTP at {self.url}" if self.url else ""))
        finally:
            self.stop()

    def stop(self) -> None:
        """Takes the functions back, and ends the daemon if this process is it. What runs is not waited for."""
        with self._lock:
            store, self._store = self._store, None
            embedded, self._embedded = self._embedded, None
            mark, self._mark = self._mark, None
            self._stopped = self._stopped or store is not None
            self._answers = False
        for provider in (*reversed(self._loaded), self.provider):
            provider.close()
        if mark is not None:
            mark.close()
        if store is not None:
            store.close()
        if embedded is not None:
            embedded.close()
        lifecycle.closed(self)

    close = stop

    def ending(self) -> None:
        """Does nothing: a server says by itself that it runs and ends."""

    # -- looking -----------------------------------------

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._store is not None

    @property
    def url(self) -> Optional[str]:
        """Where the daemon answers HTTP; ``None`` while it does not run, and for one that was joined and does not answer
        there."""
        if not self._answers:
            return None
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def socket(self) -> Optional[str]:
        """The daemon's Unix socket, on which tensors travel; ``None`` while it does not run."""
        return None if self._store is None else str(self._store.socket)

    @property
    def token_file(self) -> Optional[str]:
        """The file of the token that HTTP clients need; ``None`` where another process is the daemon."""
        return None if self._embedded is None or self._embedded.token_file is None else str(self._embedded.token_file)

    def list_functions(self) -> List[str]:
        """The names that this server's providers offer."""
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
                f"there is no module {module!r}: a name, or a file that ends in .py", field="module"
            ) from error
    path = Path(module).resolve()
    if not path.is_file():
        raise NotFoundError(f"there is no file {module}", file=str(path))
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidError(f"{module} is no Python file", file=str(path))
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "shared-tensor-server", description="Serves the functions of Python modules to other processes of this machine."
    )
    parser.add_argument(
        "modules", nargs="*", help="modules with a SharedTensorProvider: names, or files that end in .py"
    )
    parser.add_argument("--host", default="127.0.0.1", help="where HTTP is answered")
    parser.add_argument("--port", type=int, help="the HTTP port: 2537 + RANK unless given")
    parser.add_argument("--socket", help="the Unix socket of the daemon, joined or made (COTENSOR_SOCKET)")
    parser.add_argument(
        "--workers", "--max-workers", type=int, default=4, help="functions that run at a time: 4 unless given"
    )
    parser.add_argument(
        "--timeout", type=float, default=30, help="seconds that one run may take: 30 unless given, 0 for any"
    )
    parser.add_argument("--no-cache", action="store_true", help="keep no results, whatever the functions say")
    parser.add_argument(
        "--max-memory", type=int, metavar="MIB", help="the most memory of all tensors, where this is the daemon"
    )
    parser.add_argument("--token-file", help="the file of the token that HTTP clients need")
    parser.add_argument("--allow-host", action="append", metavar="NAME", help="a host name that HTTP clients may use")
    parser.add_argument(
        "--allow-pickle", action="store_true", help="for share(): values of other types cross as pickles"
    )
    parser.add_argument("--debug", action="store_true", help="log more")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def _stop(*_: object) -> None:
    raise SystemExit(0)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command ``shared-tensor-server``; its exit code."""
    options = _arguments().parse_args(argv)
    # Also while modules are loaded, which may take long.
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
                    log.warning("%s offers no functions: no SharedTensorProvider in it shares any", module)
            names = server.list_functions()
            if server.token_file is not None:
                log.info("HTTP clients need the token in %s", server.token_file)
            if names:
                log.info("%d functions: %s", len(names), ", ".join(names))
            elif not options.modules:
                log.info("no functions of its own: a daemon for providers of other processes")
            server.serve_forever()
    except CotensorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, OSError) and not isinstance(error, PermissionError) else 2
    return 0


__all__ = ["SharedTensorServer", "main"]
