"""Finds the daemon of a port or a socket."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import List, Optional, Tuple, Union

from .. import _native
from .._native import Embedded, Store
from ..errors import ConflictError, CorruptError, InvalidError, IoError, NoDaemonError, NotFoundError, RefusedError

log = logging.getLogger("cotensor")

Socket = Union[str, "os.PathLike[str]"]

#: The HTTP port of rank 0.
PORT = 2537


def port_of(server_port: Optional[int], field: str = "server_port") -> int:
    """The port: by default 2537 + ``RANK``, or 2537 if ``GPUS_PER_NODE`` is set, because all ranks then share one daemon."""
    if server_port is None:
        return int(_native.default_port())
    if isinstance(server_port, bool) or not isinstance(server_port, int) or not 0 <= server_port < 65536:
        raise InvalidError(f"{field}: {server_port!r} is not a port: pass 0 to 65535", field=field)
    return server_port


def socket_for(port: int) -> Path:
    """The default socket of a port. Every port has its own, so every rank has its own daemon."""
    usual = Path(_native.default_socket())
    return usual if port == PORT else usual.with_name(f"cotensor-{port}.sock")


def named(socket: Optional[Socket]) -> Optional[Path]:
    """The socket of the argument, of ``COTENSOR_SOCKET`` or of the configuration file; ``None`` without any."""
    path = socket if socket is not None else _native.named_socket()
    return None if path is None else Path(path)


def answering(port: int) -> Optional[Path]:
    """The socket of the daemon with HTTP at this port of this machine; ``None`` without one, or if it refuses."""
    if port == 0:
        return None
    try:
        return Path(_native.socket_of(f"127.0.0.1:{port}"))
    except (NotFoundError, RefusedError):
        return None  # the caller may still know its socket
    except CorruptError as error:
        raise ConflictError(f"port {port} is in use by another program: choose another port", field="server_port") from error


def connect(
    port: int, socket: Optional[Socket], client: Optional[str], timeout: Optional[float] = None
) -> Store:
    """Connects to the daemon: at ``socket``, at ``COTENSOR_SOCKET``, with HTTP at the port, or at the port's default socket. It
    has to answer within ``timeout`` seconds.

    Raises :class:`NoDaemonError` without one.
    """
    given = named(socket)
    if given is not None:
        return Store.connect(given, client=client, timeout=timeout)
    found = answering(port)
    if found is not None:
        return Store.connect(found, client=client, timeout=timeout)
    try:
        return Store.connect(socket_for(port), client=client, timeout=timeout)
    except NoDaemonError as error:
        message = (
            f"no daemon answers at port {port}, nor at {socket_for(port)}: start a provider, or shared-tensor-server"
        )
        raise NoDaemonError(message, field="server_port") from error


def connect_or_embed(
    port: int,
    socket: Optional[Socket],
    client: Optional[str],
    *,
    host: Optional[str] = None,
    token_file: Optional[Socket] = None,
    hosts: Optional[List[str]] = None,
    max_memory_mb: Optional[int] = None,
) -> Tuple[Store, Optional[Embedded]]:
    """As :func:`connect`; without a daemon, this process runs one.

    That daemon has HTTP at ``host`` and the port, by default at 127.0.0.1. With an explicit socket and no ``host`` it has no
    HTTP, because another daemon may use the port.
    """
    given = named(socket)
    found = answering(port) if given is None else None
    if found is not None:
        return Store.connect(found, client=client), None
    path = given or (socket_for(port) if port else socket_for(port).with_name(f"cotensor-{os.getpid()}.sock"))
    if host is None and given is None:
        host = "127.0.0.1"
    address = None if host is None else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        store, embedded = _native.connect_or_embed(
            path, listen=address, token_file=token_file, hosts=hosts, client=client, max_memory_mb=max_memory_mb
        )
    except IoError as error:
        if error.field != "listen":
            raise
        # For example another user's daemon, which does not answer this user.
        raise ConflictError(f"port {port} is not available: {error}", field="server_port") from error
    if embedded is not None:
        log.info("this process is the daemon at %s, HTTP at %s", path, embedded.http)
    return store, embedded
