"""One copy of every tensor per machine.

A :class:`Store` keeps tensors by name. ``Store()`` is inside this process. ``connect()`` returns the daemon's store, which every
process of this user shares::

    import cotensor

    store = cotensor.connect()              # starts a daemon when none runs
    store.put("x", array)                   # one copy in
    x = store.get("x").torch()              # no copy out, in any process

A published tensor is immutable. The store frees its memory when no lease is left, unless the tensor is kept. The leases of a
process end with the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, List, Optional, Union

from ._native import (
    Channel,
    ChannelReader,
    Frame,
    FrameLoan,
    NameChange,
    Store,
    Tensor,
    TensorBuilder,
    Ticket,
    Watch,
    __version__,
    as_tensor,
    content_hash,
    save_file,
)

# For ``isinstance(store, Mapping)`` and ``match``.
Mapping.register(Store)

if TYPE_CHECKING:
    import os

    from . import aio, errors
    from .embedding import Embedder
    from .errors import (
        CancelledError,
        ConflictError,
        CorruptError,
        CotensorError,
        EngineError,
        InvalidError,
        IoError,
        NoDaemonError,
        NotFoundError,
        OverBudgetError,
        RefusedError,
        RemoteError,
        TimedOutError,
        UnsupportedError,
    )
    from .streaming import StreamingProcessor


def __getattr__(name: str) -> Any:
    """Imports a module at the first use of one of its names: asyncio alone takes 50 ms, at each start of a daemon twice."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = "errors" if name.endswith("Error") else {"Embedder": "embedding", "StreamingProcessor": "streaming"}.get(name, name)
    imported = import_module(f".{module}", __name__)
    found = globals()[name] = imported if module == name else getattr(imported, name)
    return found


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})


def connect(
    socket: Optional[Union[str, "os.PathLike[str]"]] = None,
    *,
    client: Optional[str] = None,
    timeout: Optional[float] = None,
    autostart: bool = True,
) -> Store:
    """Connects to the daemon's store, which every process of this user shares.

    If no daemon answers, starts one in the background. It outlives this process, and ends after ten minutes
    (``COTENSOR_IDLE_EXIT``) without clients and tensors. ``autostart=False`` and ``COTENSOR_AUTOSTART=0`` forbid this.

    ``socket`` is the daemon's socket: by default ``COTENSOR_SOCKET``, else the default path. The user's configuration file
    (``cotensor config``) sets what no variable sets; an unknown key in it is a :class:`RuntimeWarning`, once for each file and
    key. ``client`` names this process in reports (``cotensor who``, ``cotensor top``): by default the program's name. The daemon
    has to answer within ``timeout`` seconds.

    Raises :class:`NoDaemonError`, a :class:`ConnectionError`, if no daemon answers there and none can be started.
    """
    return Store.connect(socket, client=client, timeout=timeout, autostart=autostart)


def connect_async(
    socket: Optional[Union[str, "os.PathLike[str]"]] = None,
    *,
    client: Optional[str] = None,
    timeout: Optional[float] = None,
    autostart: bool = True,
) -> "aio.Connecting":
    """As :func:`connect`, for asyncio: ``async with cotensor.connect_async() as store``, or ``store = await
    cotensor.connect_async()``. The store is an :class:`cotensor.aio.AsyncStore`.
    """
    from . import aio

    return aio.Connecting(lambda: connect(socket, client=client, timeout=timeout, autostart=autostart))


__all__ = [
    "CancelledError",
    "Channel",
    "ChannelReader",
    "ConflictError",
    "CorruptError",
    "CotensorError",
    "Frame",
    "FrameLoan",
    "TensorBuilder",
    "Embedder",
    "EngineError",
    "InvalidError",
    "NameChange",
    "NoDaemonError",
    "NotFoundError",
    "OverBudgetError",
    "RefusedError",
    "RemoteError",
    "Store",
    "StreamingProcessor",
    "IoError",
    "Tensor",
    "Ticket",
    "TimedOutError",
    "UnsupportedError",
    "Watch",
    "__version__",
    "aio",
    "connect",
    "connect_async",
    "content_hash",
    "errors",
    "as_tensor",
    "save_file",
]
