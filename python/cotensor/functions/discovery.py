"""Which daemon a provider, a client or a server uses."""

from __future__ import annotations

import os
from typing import Optional, Union

from .. import _native
from .._native import Store
from ..errors import InvalidError, NoDaemonError

Socket = Union[str, "os.PathLike[str]"]


def port_of(server_port: Optional[int], field: str = "server_port") -> int:
    """The port: by default 2537 + ``RANK``, or 2537 if ``GPUS_PER_NODE`` is set, because all ranks then share one daemon."""
    if server_port is None:
        return int(_native.default_port())
    if isinstance(server_port, bool) or not isinstance(server_port, int) or not 0 <= server_port < 65536:
        raise InvalidError(f"{field}: {server_port!r} is not a port: pass 0 to 65535", field=field)
    return server_port


def named_port(server_port: Optional[int]) -> Optional[int]:
    """The port that the program or ``RANK`` names; ``None`` without either, and for 0, which is any port."""
    port = _native.port_of_rank() if server_port is None else server_port
    return port or None


def connect(
    port: Optional[int], socket: Optional[Socket], client: Optional[str], timeout: Optional[float] = None
) -> Store:
    """Connects to the daemon at ``socket``, at ``COTENSOR_SOCKET``, of ``port``, or at the default socket. It has to answer
    within ``timeout`` seconds.

    Raises :class:`NoDaemonError` without one.
    """
    try:
        return Store.connect(socket, port=port, client=client, timeout=timeout, autostart=False, restart=True)
    except NoDaemonError as error:
        raise NoDaemonError(f"{error}: start a provider, or shared-tensor-server", field="server_port") from error


def connect_or_start(port: Optional[int], socket: Optional[Socket], client: Optional[str]) -> Store:
    """As :func:`connect`; starts a daemon in the background if none answers, as :func:`cotensor.connect` does."""
    return Store.connect(socket, port=port, client=client)
