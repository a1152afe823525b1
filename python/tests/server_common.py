"""A module of functions, and servers that are processes."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Iterator

from functions_common import Program, environment, stop_daemons

MODULE = """
import os
import numpy as np
from cotensor.provider import SharedTensorProvider

provider = SharedTensorProvider()

@provider.share(name="add_numbers")
def add_numbers(a, b):
    return a + b

@provider.share(name="mode")
def mode():
    return provider.execution_mode, os.getpid()

@provider.share(cache=True)
def stamp(x, made=[]):
    made.append(x)
    return len(made)

@provider.share
def sleepy():
    import time
    print("sleeping", flush=True)
    while True:
        time.sleep(0.01)

if __name__ == "__main__":
    provider.serve()
"""


@contextlib.contextmanager
def server_folder() -> Iterator[Path]:
    """A folder for sockets, with :data:`MODULE` as my_functions.py. The daemons in it end with the block."""
    with tempfile.TemporaryDirectory(prefix="cot-") as name:
        (Path(name) / "my_functions.py").write_text(MODULE)
        yield Path(name)
        stop_daemons(Path(name))


def serving(folder: Path, *arguments: str, **more: str) -> Program:
    """Starts the command, with sockets in `folder`."""
    command = [sys.executable, "-m", "cotensor.server", *arguments]
    folders = {"COTENSOR_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    return Program("", command=command, cwd=folder, env=environment(**folders, **more))


def health(port: int) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
        return json.load(answer)


def daemon_process(port: int) -> int:
    """The process id of the daemon with this HTTP port."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(health(port)["socket"])
        return struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def is_up(port: int) -> bool:
    try:
        return health(port)["status"] == "ok"
    except (urllib.error.URLError, ConnectionError):
        return False
