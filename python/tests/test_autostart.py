"""``connect()`` starts a daemon when none answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest
from conftest import command

import cotensor

PROGRAM = """
import sys, cotensor, numpy
store = cotensor.connect()
store.put("x" + sys.argv[1], numpy.array([1.0, 2.0]))
print(store.epoch)
"""


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The socket of a daemon that does not run; its end afterwards."""
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "s"
        monkeypatch.setenv("COTENSOR_SOCKET", str(socket))
        monkeypatch.setenv("COTENSOR_AUTOSTART", "1")
        yield socket
        subprocess.run([*command(), "stop", "--socket", str(socket)], check=True, capture_output=True)


def status(socket: Path) -> dict[str, object]:
    printed = subprocess.run([*command(), "status", "--json"], check=True, capture_output=True)
    found: dict[str, object] = json.loads(printed.stdout)
    return found


def test_connect_starts_a_daemon_that_outlives_its_starter(socket: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, "0"], check=True)
    store = cotensor.connect()
    assert np.array_equal(store.get("x0").numpy(), [1.0, 2.0])
    assert store.socket == socket
    server = status(socket)["server"]
    arguments = Path(f"/proc/{server}/cmdline").read_bytes().split(b"\0")
    assert os.path.realpath(os.fsdecode(arguments[0])) == os.path.realpath(sys.executable), "of this installation"
    store.remove("x0")


def test_processes_that_connect_at_once_get_one_daemon(socket: Path) -> None:
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(index)], stdout=subprocess.PIPE) for index in range(8)
    ]
    epochs = {program.communicate()[0] for program in programs}
    assert all(program.returncode == 0 for program in programs)
    assert len(epochs) == 1
    assert status(socket)["tensors"] == 8


def test_autostart_can_be_forbidden(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cotensor.NoDaemonError):
        cotensor.connect(autostart=False)
    monkeypatch.setenv("COTENSOR_AUTOSTART", "0")
    with pytest.raises(cotensor.NoDaemonError):
        cotensor.connect()
    assert not socket.exists()
