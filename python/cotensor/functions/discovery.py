"""Where the daemon of a port is."""

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
    """The port, or this rank's: 2537 + ``RANK``, or 2537 where ``GPUS_PER_NODE`` says that one daemon is for all
    devices."""
    if server_port is None:
        return int(_native.default_port())
    if isinstance(server_port, bool) or not isinstance(server_port, int) or not 0 <= server_port < 65536:
        raise InvalidError(f"{field}: {server_port!r} is no port", field=field)
    return server_port


def socket_for(port: int) -> Path:
    """The socket of a daemon that is known by its port only: each port has its own, so that ranks do not meet."""
    usual = Path(_native.default_socket())
    return usual if port == PORT else usual.with_name(f"cotensor-{port}.sock")


def named(socket: Optional[Socket]) -> Optional[Path]:
    """The socket that somebody named."""
    path = socket if socket is not None else os.environ.get("COTENSOR_SOCKET") or None
    return None if path is None else Path(path)


def answering(port: int) -> Optional[Path]:
    """The socket of the daemon that answers HTTP at this port of this machine; none where it does not, or not to us."""
    if port == 0:
        return None
    try:
        return Path(_native.socket_of(f"127.0.0.1:{port}"))
    except (NotFoundError, RefusedError):
        return None  # its socket may be known all the same
    except CorruptError as error:
        raise ConflictError(f"port {port} is taken by something that is no daemon", field="server_port") from error


def connect(
    port: int, socket: Optional[Socket], client: Optional[str], timeout: Optional[float] = None
) -> Store:
    """Connects to the daemon: of that socket, of ``COTENSOR_SOCKET``, of the port, or at the port's usual place. It has to
    answer within ``timeout`` seconds.

    Raises :class:`NoDaemonError` when there is none.
    """
    told = named(socket)
    if told is not None:
        return Store.connect(told, client=client, timeout=timeout)
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
    """As :func:`connect`; where no daemon is, this process becomes it.

    It answers HTTP at ``host`` and that port, too: of this machine unless given, not at all at a socket that somebody
    named: the port may be another's.
    """
    told = named(socket)
    found = answering(port) if told is None else None
    if found is not None:
        return Store.connect(found, client=client), None
    place = told or (socket_for(port) if port else socket_for(port).with_name(f"cotensor-{os.getpid()}.sock"))
    if host is None and told is None:
        host = "127.0.0.1"
    address = None if host is None else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        store, embedded = _native.connect_or_embed(
            place, listen=address, token_file=token_file, hosts=hosts, client=client, max_memory_mb=max_memory_mb
        )
    except IoError as error:
        if error.field != "listen":
            raise
        # Another user's daemon, say, which tells us nothing.
        raise ConflictError(f"port {port} is not to be had: {error}", field="server_port") from error
    if embedded is not None:
        log.info("this process is the daemon at %s, HTTP at %s", place, embedded.http)
    return store, embedded
