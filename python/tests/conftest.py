"""Fixtures of all tests: a daemon, stores of both kinds, a provider and its client."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import pytest
from functions_common import Program, providing
from functions_provided import FUNCTIONS

import cotensor
from cotensor.client import SharedTensorClient

REPOSITORY = Path(__file__).resolve().parents[2]

# A model's name that is not a folder must not reach a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Tests compare results bit by bit: products of MKL must not depend on where their matrices lie. MKL reads it when it is loaded.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

# A test that means a daemon names it.
os.environ.setdefault("COTENSOR_AUTOSTART", "0")
os.environ.setdefault("COTENSOR_CONFIG", "/dev/null")

# Engines of processes that use a daemon keep files here, and not in the user's folder.
CACHE = tempfile.TemporaryDirectory()
os.environ.setdefault("COTENSOR_CACHE", CACHE.name)


@functools.cache
def command() -> tuple[str, ...]:
    """The command line: that of this package, or the binary if the package does not embed it."""
    named = os.environ.get("COTENSOR_COMMAND")
    if named:
        return (named,)
    if hasattr(cotensor._native, "main"):
        return (sys.executable, "-m", "cotensor")
    binary = REPOSITORY / "target" / "debug" / "cotensor"
    assert binary.is_file(), f"{binary} is missing: cargo build -p cotensor-cli"
    return (str(binary),)


class Daemon:
    """A running `cotensor serve` in a temporary folder."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.socket = folder / "s"
        self.log = folder / "log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COTENSOR_")}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*command(), "serve", "--json", "--socket", str(self.socket), *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        assert self.process.stdout is not None
        printed = b""
        while not printed.endswith(b"}\n"):
            line = self.process.stdout.readline()
            assert line, f"the daemon did not start: {self.log.read_text()}"
            printed += line
        #: The output of `serve --json`: socket, pid, server, epoch, http, token_file.
        self.info = json.loads(printed)

    def connect(self) -> cotensor.Store:
        return cotensor.connect(self.socket, client="test")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextmanager
def serving(*flags: str) -> Iterator[Daemon]:
    """A daemon for one test, with these flags."""
    # The names of pytest's folders are too long for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="cot-") as folder:
        daemon = Daemon(Path(folder), *flags)
        try:
            yield daemon
        finally:
            daemon.stop()


def _torch_modes() -> Any:
    """Settings of a process that change what later tests compute; None before torch is imported."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "is_grad_enabled"):
        return None
    return torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device()


@pytest.fixture(autouse=True, scope="module")
def _torch_modes_stay() -> Iterator[None]:
    """Fails a file that leaves other settings of torch than it found, because the files after it would fail instead."""
    before = _torch_modes()
    yield
    after = _torch_modes()
    assert before is None or after == before, f"this file left gradient mode, default dtype and device {after}, not {before}"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon for the tests of one file. A test that stops or limits its daemon uses `serving`."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module", params=["local", "daemon"])
def store(request: pytest.FixtureRequest) -> Iterator[cotensor.Store]:
    """A store of each kind, empty at the start of a file."""
    if request.param == "local":
        yield cotensor.Store()
        return
    with request.getfixturevalue("daemon").connect() as opened:
        yield opened


@pytest.fixture
def writer(store: cotensor.Store) -> Iterator[cotensor.Store]:
    """The store, by a connection of its own where there is one."""
    if store.socket is None:
        yield store
        return
    with cotensor.connect(store.socket) as other:
        yield other


def local_store(scope: str = "function") -> Any:
    """A fixture: a store inside the test's process, for files without a daemon."""

    @pytest.fixture(scope=scope)
    def store() -> Iterator[cotensor.Store]:
        with cotensor.Store() as opened:
            yield opened

    return store


@pytest.fixture(scope="module")
def provider(daemon: Daemon) -> Iterator[Program]:
    """A process that provides `functions_provided`."""
    with providing(daemon.socket, FUNCTIONS) as running:
        yield running


@pytest.fixture
def client(daemon: Daemon, provider: Program) -> Iterator[SharedTensorClient]:
    """A client of the provider."""
    # Other tests of this process may have imported torch, which changes the default of `tensors`.
    with SharedTensorClient(socket=daemon.socket, retry_count=0, tensors="numpy") as opened:
        yield opened


@pytest.fixture(scope="module")
def frozen() -> Iterator[None]:
    """Leaves what the imports have made out of collections of garbage, which would take a quarter of a second for each test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def memory(frozen):
    """The memory of the simulated accelerator, without a limit and with new counters."""
    from cotensor.tensorref import simulated_device

    # Tensors of earlier tests would count.
    gc.collect()
    memory = simulated_device().memory
    yield memory
    memory.limit_bytes = None
    memory.fail(0)


@pytest.fixture(params=["genoa", "flow", "lru", "pinned"])
def strategy(request, memory):
    """The strategies of `cotensor.tensorref`."""
    return request.param
