"""Programs that tests run in other processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional

#: The longest wait of a test, in seconds.
TIMEOUT_S = 60.0

PROVIDER = """
import os, signal, threading, time
import numpy as np
from cotensor.provider import SharedTensorProvider, check_cancelled, current_call

provider = SharedTensorProvider(socket={socket!r}, execution_mode="server", workers=4, {options})
"""

#: Prints "ready" when the signal handlers are installed.
SERVE = """
import logging

class Ready(logging.Handler):
    def emit(self, record):
        if "until SIGINT" in record.getMessage():
            print("ready", flush=True)

logging.getLogger("cotensor.provider").setLevel(logging.INFO)
logging.getLogger("cotensor.provider").addHandler(Ready())
provider.serve()
"""


def environment(**more: str) -> Dict[str, str]:
    """The environment of this process, without the variables that locate a daemon, and with no daemon that is not named."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COTENSOR_") and k not in ("RANK", "GPUS_PER_NODE")}
    return {**kept, "COTENSOR_AUTOSTART": "0", "COTENSOR_CONFIG": "/dev/null", **more}


class Program:
    """A Python program that runs beside the test."""

    def __init__(self, code: str, *arguments: str, command: Optional[list[str]] = None, **options: Any) -> None:
        command = command or [sys.executable, "-c", textwrap.dedent(code), *arguments]
        options.setdefault("env", environment())
        # Background processes of a shell ignore SIGINT, and so would their children.
        options.setdefault("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    def line(self) -> str:
        """The next line of the program's output."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
        assert readable, "the program prints nothing"
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.finish()[1]}"
        return line.rstrip("\n")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def finish(self) -> tuple[str, str]:
        """Waits for the program's end. Returns its further output, and its errors."""
        return self.process.communicate(timeout=TIMEOUT_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def program(code: str, *arguments: str, **options: Any) -> Iterator[Program]:
    running = Program(code, *arguments, **options)
    try:
        yield running
    finally:
        running.end()


@contextmanager
def providing(socket: Path, functions: str, options: str = "") -> Iterator[Program]:
    """Runs a provider of these functions, with the daemon at `socket`."""
    code = PROVIDER.format(socket=str(socket), options=options) + textwrap.dedent(functions) + SERVE
    with program(code) as running:
        assert running.line() == "ready"
        yield running
        if running.process.poll() is None:
            running.signal(signal.SIGTERM)
            out, errors = running.finish()
            assert running.process.returncode == 0, errors


def run(code: str, *arguments: str, **options: Any) -> str:
    """Runs a program, which must succeed, and returns its output."""
    running = Program(code, *arguments, **options)
    try:
        out, errors = running.finish()
    finally:
        running.end()
    assert running.process.returncode == 0, f"{running.process.returncode}: {errors}"
    return out


def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Waits until `condition` is true; `what` names it in the error."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, f"still false: {what}"
        time.sleep(0.01)


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped by a signal."""

    def stopped(thread: Path) -> bool:
        try:
            return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            return True

    return all(stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir())


def stop_process(pid: int) -> None:
    """Stops a process by a signal, and waits until all its threads are stopped: until then, each may still run."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid))


def stop_daemons(folder: Path) -> None:
    """Ends the daemons whose sockets are in this folder."""
    from conftest import command  # which imports this module

    for path in folder.iterdir():
        if path.is_socket():
            subprocess.run([*command(), "stop", "--socket", str(path)], check=True, capture_output=True, timeout=60)


def free_port() -> int:
    """A port at which no program listens."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
