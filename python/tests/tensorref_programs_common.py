"""Programs of their own that offload models, for tests of several at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

#: Far longer than any step takes.
TIMEOUT = 60.0


class Program:
    """A script that answers commands with lines of JSON, as a process with a daemon."""

    def __init__(self, script, socket, *arguments):
        command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
        environment = {**os.environ, "COTENSOR_SOCKET": str(socket)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)
        self.started = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the program ended"
        return json.loads(line)

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        counts = self.ask("end")
        assert self.process.wait(TIMEOUT) == 0
        return counts

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@contextmanager
def programs(script):
    """Yields a function that starts a program. All are killed in the end."""
    started = []

    def start(*arguments):
        started.append(Program(script, *arguments))
        return started[-1]

    try:
        yield start
    finally:
        for program in started:
            program.kill()
