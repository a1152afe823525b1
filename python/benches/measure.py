"""Measurement: interleaved rounds, medians, processes."""

from __future__ import annotations

import gc
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional


def seconds(run: Callable[[], object]) -> float:
    """The time of one run, without the release of its result."""
    start = time.perf_counter()
    result = run()
    taken = time.perf_counter() - start
    del result
    return taken


def interleaved(
    contenders: Dict[str, Callable[[], object]],
    rounds: int,
    turn: int = 1,
    before: Optional[Dict[str, Callable[[], object]]] = None,
) -> Dict[str, float]:
    """The median time of each contender. The rounds are interleaved, so that other load on the machine affects all contenders. In
    each round a contender runs `turn` times. The functions in `before` run before each run and are not measured."""
    times: Dict[str, List[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            prepare = (before or {}).get(name)
            for _ in range(turn):
                if prepare is not None:
                    prepare()
                times[name].append(seconds(run))
    gc.collect()
    return {name: statistics.median(taken) for name, taken in times.items()}


class Echo:
    """An echo of 200 bytes by another process over a Unix socket: the unit for latencies. It runs on `processor`, if set."""

    _SERVER = """
import os, socket, sys
if len(sys.argv) > 2:
    os.sched_setaffinity(0, {int(sys.argv[2])})
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
while True:
    m = s.recv(200, socket.MSG_WAITALL)
    if not m: break
    s.sendall(m)
"""

    def __init__(self, processor: Optional[int] = None) -> None:
        path = os.path.join(tempfile.mkdtemp(), "echo")
        pinned = [] if processor is None else [str(processor)]
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            self._process = subprocess.Popen([sys.executable, "-c", self._SERVER, path, *pinned])
            self._socket, _ = listener.accept()

    def __call__(self) -> bytes:
        self._socket.sendall(b"x" * 200)
        return self._socket.recv(200, socket.MSG_WAITALL)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@contextmanager
def daemon(*flags: str) -> Iterator[str]:
    """Runs `cotensor serve`. Yields the path of its socket."""
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "s")
    process = subprocess.Popen(
        [sys.executable, "-m", "cotensor", "serve", "--json", "--socket", path, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        while process.stdout.readline().strip() != b"}":
            if process.poll() is not None:
                raise RuntimeError("the daemon did not start")
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield path
    finally:
        process.terminate()
        process.wait(30)


def pss(pid: int) -> int:
    """The proportional memory of a process, in bytes."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) << 10


def anonymous(pid: int) -> int:
    """The anonymous memory of a process, in bytes: no files and no shared memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")) << 10


class Child:
    """A process that runs a script, with pipes for its input and output."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended with {self.process.wait()}")
        return line.strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def us(taken: float) -> str:
    return f"{taken * 1e6:,.1f} us" if taken < 0.01 else f"{taken * 1e3:,.1f} ms"
