"""Runs cases in processes of their own, so that one that aborts or hangs is a failure as any other."""

from __future__ import annotations

import importlib
import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import zlib
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch

from .case import Case
from .places import Place

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Task:
    """All samples of one name of a database in one dtype."""

    database: str
    name: str
    dtype: str


@dataclass(frozen=True)
class Result:
    """One case: what differs by place and variant; None: skipped."""

    task: Task
    label: str
    differing: Optional[Dict[str, List[Tuple[str, str]]]]
    seconds: float = 0.0


@dataclass
class Selection:
    """What runs, chosen by the seed: a ``share`` of the tasks, ``cases_max`` cases of each, each in ``places_max`` places.

    After the first ``full_cases`` cases of a task, the others have one place each: thousands of cases with nearly equal arguments
    would take more time than all operators.
    """

    share: float = 1.0
    seed: int = 0
    cases_max: int = 1 << 30
    places_max: int = 1 << 30
    full_cases: int = 1 << 30
    #: The names of the places of all cases; the first one of each task has others, too. None: all.
    repeated: Optional[Sequence[str]] = None

    def has(self, task: Task) -> bool:
        """Whether the seed selects a task."""
        return self._number(str(task)) < self.share * (1 << 32)

    def cases(self, task: Task) -> List[Case]:
        """The cases that run, in the order of the database."""
        found = list(enumerate(database(task.database).cases(task.name, getattr(torch, task.dtype))))
        found.sort(key=lambda one: self._number(f"{task} {one[1].label}"))
        return [case for _, case in sorted(found[: self.cases_max], key=lambda one: one[0])]

    def places(self, task: Task, case: Case, places: List[Place], number: int = 0) -> List[Place]:
        """The places of a case, which is the ``number``-th of its task, counted from 0."""
        count = self.places_max if number < self.full_cases else 1
        if self.repeated is not None and number:
            places = [place for place in places if place.name in self.repeated]
        return sorted(places, key=lambda place: self._number(f"{task} {case.label} {place}"))[:count]

    def _number(self, key: str) -> int:
        return zlib.crc32(f"{self.seed} {key}".encode())


def database(name: str) -> Any:
    """The module of a database: its ``names()`` and ``cases(name, dtype)``."""
    return importlib.import_module(f".{name}", __package__)


@dataclass(frozen=True)
class _Progress:
    """What a process does: the number of cases that it has begun, and the program that it runs."""

    count: int
    case: str = "samples"
    variant: str = ""
    place: str = ""


class _SharedText:
    """Bytes that a process writes and that another one reads after its end. Messages would wake the reader for each program."""

    #: Bytes of each of two texts: the process may end while it writes one, and then the other one is read.
    _SIZE = mmap.PAGESIZE

    def __init__(self) -> None:
        # The first byte is the number of the text that is read.
        self._memory = mmap.mmap(-1, 3 * self._SIZE)

    def write(self, text: bytes) -> None:
        """Replaces the bytes."""
        assert len(text) <= self._SIZE - 4
        number = 1 - self._memory[0]
        start = (1 + number) * self._SIZE
        self._memory[start : start + 4 + len(text)] = len(text).to_bytes(4, "little") + text
        self._memory[0] = number

    def read(self) -> bytes:
        """The last bytes that were written as a whole."""
        start = (1 + self._memory[0]) * self._SIZE
        return self._memory[start + 4 : start + 4 + int.from_bytes(self._memory[start : start + 4], "little")]


class Run:
    """Runs tasks in ``jobs`` processes at a time. A case of more than ``case_seconds`` is a failure."""

    def __init__(self, places: List[Place], selection: Selection, jobs: int, case_seconds: float) -> None:
        self.places, self.selection, self.jobs, self.case_seconds = places, selection, jobs, case_seconds

    def results(self, tasks: Iterable[Task], ends_at: float) -> Iterator[Result]:
        """The results in the order of their ends. No task starts after ``ends_at`` of the monotonic clock."""
        waiting = iter(tasks)
        running: Dict[Connection, _Child] = {}
        while True:
            while len(running) < self.jobs and time.monotonic() < ends_at:
                task = next(waiting, None)
                if task is None:
                    break
                child = _Child(task, self._cases, 0)
                running[child.connection] = child
            if not running:
                return
            for connection in wait(list(running), timeout=1.0):
                child = running[connection]  # type: ignore[index]
                message = child.receive()
                if message is not None:
                    yield message
                    continue
                del running[child.connection]
                if not child.has_ended:
                    progress = child.progress()
                    yield self._failed(child, progress, child.end())
                    # The samples themselves may end the process.
                    if progress.count > child.first:
                        child = _Child(child.task, self._cases, progress.count)
                        running[child.connection] = child
            for child in running.values():
                if child.silent_seconds() > self.case_seconds:
                    child.is_late = True
                    child.process.kill()

    def _failed(self, child: "_Child", progress: "_Progress", end: str) -> Result:
        """The result of a case that ended its process; the places after that one did not run."""
        place = progress.place or str(self.places[0])
        return Result(child.task, progress.case, {place: [(progress.variant, end)]})

    def _cases(self, task: Task, first: int, progress: Callable[[_Progress], None], send: Callable[[Result], None]) -> None:
        for number, case in list(enumerate(self.selection.cases(task)))[first:]:
            case.progress = lambda variant, place, at=number + 1, label=case.label: progress(_Progress(at, label, variant, place))
            places = self.selection.places(task, case, self.places, number) if case.places is None else case.places
            started = time.monotonic()
            differing = case.run(places)
            send(Result(task, case.label, differing, time.monotonic() - started))
            progress(_Progress(number + 1))


class _Child:
    """A process that runs the cases of a task, from the number ``first`` on."""

    def __init__(self, task: Task, run: Callable[..., None], first: int) -> None:
        self.task = task
        #: Cases that the processes before have begun.
        self.first = first
        self.is_late = self.has_ended = False
        self._progress = _SharedText()
        self._seen, self._heard_at = b"", time.monotonic()
        self._errors = tempfile.TemporaryFile()
        self.connection, other = _FORK.Pipe(duplex=False)
        self.process = _FORK.Process(target=self._main, args=(run, first, other))
        self.process.start()
        other.close()

    def _main(self, run: Any, first: int, connection: Connection) -> None:
        os.dup2(self._errors.fileno(), 2)
        run(self.task, first, lambda progress: self._progress.write(pickle.dumps(progress)), connection.send)
        connection.send(None)
        # Without destructors: all results are sent.
        os._exit(0)

    def receive(self) -> Optional[Result]:
        """The next result; None at the end."""
        try:
            message = self.connection.recv()
        except EOFError:
            return None
        self.has_ended = message is None
        return message  # type: ignore[no-any-return]

    def progress(self) -> "_Progress":
        """What it did at last. It has ended."""
        self.process.join()
        text = self._progress.read()
        return pickle.loads(text) if text else _Progress(self.first)

    def silent_seconds(self) -> float:
        """How long it has been at the same program."""
        text = self._progress.read()
        if text != self._seen:
            self._seen, self._heard_at = text, time.monotonic()
        return time.monotonic() - self._heard_at

    def end(self) -> str:
        """How the process ended before its cases did."""
        self.process.join()
        if self.is_late:
            return "takes too long"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        telling = next((line for line in lines if "what()" in line or "Error" in line or "assert" in line.lower()), "")
        code = self.process.exitcode or 0
        return f"abort: {signal.Signals(-code).name if code < 0 else f'exit code {code}'} {telling[:140]}".strip()
