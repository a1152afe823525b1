"""Programs of processes with a GPU: a script has a function for each, with the store. And how tests run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_common import Machine

import cotensor

if TYPE_CHECKING:
    from conftest import Daemon

FOLDER = Path(__file__).parent


def run(script: str, program: str, running: Daemon, environment: dict[str, str]) -> None:
    """Runs a program to its end."""
    command = [sys.executable, str(FOLDER / script), program, str(running.socket)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout.endswith("done\n"), ended.stdout + ended.stderr


class Program:
    """A program that stops at its steps."""

    def __init__(self, script: str, program: str, running: Daemon, machine: Machine, reached: str) -> None:
        command = [sys.executable, str(FOLDER / script), program, str(running.socket)]
        self.process = subprocess.Popen(
            command, env=machine.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.reaches(reached)

    def reaches(self, step: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{step}\n"

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def ends(self) -> None:
        self.go_on()
        output, _ = self.process.communicate()
        assert (self.process.returncode, output) == (0, "done\n")


def main(programs: dict[str, Any]) -> None:
    """Runs the program that the arguments name, ``NAME SOCKET``, in this process."""
    with cotensor.connect(sys.argv[2]) as opened:
        programs[sys.argv[1]](opened)
    print("done", flush=True)


def machine() -> Machine:
    """The machine of this process, as it is."""
    own = Machine.__new__(Machine)
    own.folder, own.devices = Path(os.environ["COTENSOR_CUDA_DRIVER"]).parent, 1
    return own


def step(name: str) -> None:
    """Tells the test that this step is done, and waits for it."""
    print(name, flush=True)
    assert sys.stdin.readline() == "go on\n"
