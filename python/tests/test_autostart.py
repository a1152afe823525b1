"""``connect()`` starts a daemon when none answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest
from conftest import REPOSITORY, command

import cotensor
from cotensor.client import SharedTensorClient
from cotensor.provider import SharedTensorProvider

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


#: Connects while a signal is handled every millisecond, and while another thread collects the status of every child.
INTERRUPTED = """
import os, signal, sys, threading, cotensor, numpy
if sys.argv[1] == "signals":
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
elif sys.argv[1] == "ignored":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
elif sys.argv[1] == "reaper":
    def reap():
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                pass
    threading.Thread(target=reap, daemon=True).start()
store = cotensor.connect()
store.put("x", numpy.array([1.0, 2.0]))
assert store.get("x").numpy().tolist() == [1.0, 2.0]
# Python's end restores the default, which ends the process.
signal.setitimer(signal.ITIMER_REAL, 0)
"""


@pytest.mark.parametrize("kind", ["signals", "ignored", "reaper"])
def test_signals_and_reapers_of_the_starter_do_not_disturb(socket: Path, kind: str) -> None:
    subprocess.run([sys.executable, "-c", INTERRUPTED, kind], check=True, timeout=60)
    assert status(socket)["tensors"] == 1


def test_running_programs_start_the_next_daemon(socket: Path) -> None:
    """Providers, clients and stores of functions go on after `cotensor stop`."""
    store = cotensor.connect()
    with SharedTensorProvider() as provider, SharedTensorClient(retry_count=8) as client:
        provider.share(name="add")(lambda a, b: a + b)
        assert client.add(1, 2) == 3
        for _ in range(2):
            subprocess.run([*command(), "stop"], check=True, capture_output=True)
            assert client.call_function("add", [1, 2]) == 3
            store.put("x", np.array([1.0, 2.0]))
            assert store.get("x").numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize("end", ["stop", "kill model process"])
def test_embedder_goes_on_after_the_end_of_its_processes(socket: Path, end: str) -> None:
    embedder = cotensor.Embedder(REPOSITORY / "fixtures" / "tiny" / "bert")
    rows = embedder.embed(["a text", "another"])
    if end == "stop":
        subprocess.run([*command(), "stop"], check=True, capture_output=True)
    else:
        os.kill(int(str(status(socket)["models"])), signal.SIGKILL)
    assert np.array_equal(embedder.embed(["a text", "another"]), rows)
