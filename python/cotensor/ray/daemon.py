"""The daemon of a node."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List, Optional

from .._native import Store
from ..errors import CotensorError, NoDaemonError, RefusedError

#: The system's folder of temporary files that survive a restart.
_DISK = Path("/var/tmp")
#: The time for a daemon to start, in seconds.
_START_TIMEOUT = 60.0


def socket_of(node: str) -> Path:
    """The socket of a node's daemon, in a folder of this user. Nodes of one machine have different ones.

    Raises :class:`RefusedError` for a folder in which another user can put a socket of its own.
    """
    return _own_folder(Path(tempfile.gettempdir())) / _name_of(node)


def folders_of_models() -> Path:
    """Where the nodes of this machine have folders of models from other nodes. On a disk, where possible.

    Raises :class:`RefusedError` as :func:`socket_of`.
    """
    return _own_folder(_DISK if os.access(_DISK, os.W_OK) else Path(tempfile.gettempdir()))


def _own_folder(parent: Path) -> Path:
    folder = parent / f"cotensor-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise RefusedError(f"{folder}: other users can write to this folder of sockets and models: remove it", field="socket")
    return folder


def may_be_of(socket: Optional[Path], node: str) -> bool:
    """Whether a store's socket may be that of a node's daemon: its folder depends on the environment of the agent."""
    return socket is not None and socket.name == _name_of(node)


def _name_of(node: str) -> str:
    return f"ray-{node[:32]}.sock"


def start(socket: Path, memory_bytes: int) -> None:
    """Starts the daemon of a node, or finds a running one. It ends with the node's raylet, and not with this process.

    Raises :class:`NoDaemonError` with the reason when it does not start.
    """
    command = [sys.executable, "-m", "cotensor", "serve", "--detach", "--socket", str(socket)]
    command += ["--max-memory", f"{memory_bytes}B", *_end_with()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_START_TIMEOUT)
        reason = done.stderr.strip()
    except subprocess.TimeoutExpired:
        reason = f"it did not answer within {_START_TIMEOUT:.0f} s"
    try:
        # Another process may have started it.
        Store.connect(socket, autostart=False).close()
    except CotensorError as error:
        raise NoDaemonError(f"{socket}: the daemon of this node did not start: {reason or error}") from error


def _end_with() -> List[str]:
    """The option that ends the daemon with the raylet."""
    raylet = os.environ.get("RAY_RAYLET_PID", "")
    return ["--end-with", raylet] if raylet.isdecimal() else []
