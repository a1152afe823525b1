"""The two builds, their daemons, and programs that run in them."""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

PROGRAMS = Path(__file__).with_name("programs.py")
#: The longest wait, in seconds.
TIMEOUT_S = 60.0


def environment(socket: Path, cache: Path) -> Dict[str, str]:
    """No variable of this process locates a daemon, and no daemon starts that is not named."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COTENSOR_", "RANK", "GPUS_PER_NODE"))}
    places = {"COTENSOR_SOCKET": str(socket), "COTENSOR_CACHE": str(cache), "COTENSOR_CONFIG": "/dev/null"}
    return {**kept, **places, "COTENSOR_AUTOSTART": "0", "HF_HUB_OFFLINE": "1"}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "the condition is still false"
        time.sleep(0.02)


class Build:
    """An interpreter that has one build of the package, and the build's wheel."""

    def __init__(self, name: str, python: Path, wheel: Path) -> None:
        self.name, self.python, self.wheel = name, python, wheel

    @classmethod
    def made(cls, name: str, folder: Path) -> "Build":
        """The build that test_versions.sh made: a wheel, and `env`, a virtual environment that has it."""
        (wheel,) = folder.glob("*.whl")
        return cls(name, folder / "env" / "bin" / "python", wheel)

    @property
    def command(self) -> List[str]:
        return [str(self.python), "-m", "cotensor"]

    @functools.cached_property
    def about(self) -> Dict[str, Any]:
        """The output of `cotensor version`."""
        return json.loads(subprocess.check_output([*self.command, "version", "--json"], stdin=subprocess.DEVNULL))

    def install(self, other: "Build") -> None:
        """Puts another build in the place of this one, as `pip install --upgrade` does."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        options = ["--no-index", "--no-deps", "--force-reinstall"]
        subprocess.run([*pip, *options, str(other.wheel)], check=True, stdin=subprocess.DEVNULL)


class Program:
    """A program of `programs.py` that runs beside the test."""

    def __init__(self, build: Build, daemon: "Daemon", name: str, *arguments: str) -> None:
        self.name = f"{name} of the {build.name} build"
        command = [str(build.python), str(PROGRAMS), name, *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=daemon.environment)

    def line(self) -> str:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
        assert readable, f"{self.name} prints nothing"
        line = self.process.stdout.readline()
        assert line, f"{self.name} failed: {self.process.communicate(timeout=TIMEOUT_S)[1]}"
        return line.rstrip("\n")

    def finish(self, line: str = "") -> str:
        """Sends the line, and returns what the program prints until its end, which must be a success."""
        out, errors = self.process.communicate(line + "\n", timeout=TIMEOUT_S)
        assert self.process.returncode == 0, f"{self.name} failed: {errors}"
        return out


class Daemon:
    """A running daemon of one build."""

    def __init__(self, build: Build, folder: Path) -> None:
        self.build = build
        self.socket = folder / "s"
        self.environment = environment(self.socket, folder / "cache")
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            command = [*build.command, "serve", "--json", "--socket", str(self.socket)]
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            self.process = subprocess.Popen(command, stdin=null, stdout=pipe, stderr=log, env=self.environment)
        assert self.process.stdout is not None
        printed = b""
        while not printed.endswith(b"}\n"):
            line = self.process.stdout.readline()
            assert line, f"the daemon of the {build.name} build did not start: {self.log.read_text()}"
            printed += line
        self.server = json.loads(printed)["server"]

    @contextmanager
    def program(self, build: Build, name: str, *arguments: str) -> Iterator[Program]:
        """A program of the build, which has this daemon."""
        running = Program(build, self, name, *arguments)
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.process.kill()
            running.process.communicate()

    def run(self, build: Build, name: str, *arguments: str) -> str:
        with self.program(build, name, *arguments) as running:
            return running.finish()

    def command(self, build: Build, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command of the build, with this daemon."""
        options: Dict[str, Any] = {"env": self.environment, "stdin": subprocess.DEVNULL, "timeout": TIMEOUT_S}
        return subprocess.run([*build.command, *arguments], capture_output=True, text=True, **options)

    def answer(self, build: Build, *arguments: str) -> Any:
        """The output of a command, which must succeed."""
        done = self.command(build, *arguments, "--json")
        assert done.returncode == 0, f"cotensor {' '.join(arguments)} of the {build.name} build failed: {done.stderr}"
        return json.loads(done.stdout)

    def leases(self, build: Build, name: str) -> Dict[int, int]:
        """The number of leases of each version of a tensor, as the build's command lists them."""
        (tensor,) = self.answer(build, "who", name)["tensors"]
        return {version["version"]: sum(version["holders"].values()) for version in tensor["versions"]}

    def replace_server(self) -> int:
        """Kills the server, waits for the next one, and returns its process."""
        os.kill(self.server, signal.SIGKILL)

        def next_server() -> bool:
            status = self.command(self.build, "status", "--json")
            server = json.loads(status.stdout)["server"] if status.returncode == 0 else self.server
            changed = server != self.server
            self.server = server
            return changed

        until(next_server)
        assert self.process.poll() is None, "the supervisor has ended"
        return self.server

    def end(self) -> None:
        """Ends the daemon by a signal if it runs."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(TIMEOUT_S)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()

