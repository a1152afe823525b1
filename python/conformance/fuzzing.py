"""Runs random programs until a time ends, and minimizes those that differ."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
import time
from dataclasses import replace
from typing import Dict, Iterable, List, Optional, Tuple

from .places import Place
from .programs import Program, program_of
from .report import Report
from .runner import Result, Run, Task

#: A mismatch: the place and the cause.
_Mismatch = Tuple[str, str]


def fuzz(run: Run, report: Report, seed: int, count: Optional[int], minutes: float, names: Optional[List[str]]) -> List[str]:
    """Runs programs from a seed on. Returns the mismatches with their minimized programs, one of each kind."""
    ends_at = time.monotonic() + 60 * minutes
    found: Iterable[str] = names or map(str, itertools.count(seed) if count is None else range(seed, seed + count))
    # What PyTorch imports at the first transform: once for all processes.
    importlib.import_module("torch._dynamo")
    programs = steps = 0
    first: Dict[Tuple[bool, str], Tuple[str, _Mismatch]] = {}
    for result in run.results(map(_task, found), ends_at):
        report.add(result)
        programs += 1
        steps += len(program_of(result.task.name).steps)
        for mismatch in _mismatches(result, report):
            if first.setdefault(_kind(mismatch), (result.task.name, mismatch)) == (result.task.name, mismatch):
                print(f"{result.task.name}: {mismatch[0]}: {mismatch[1]}", file=sys.stderr, flush=True)
    print(f"{programs} programs with {steps} steps, {len(first)} kinds of mismatches", flush=True)
    return [_text(_minimized(run, report, program_of(name), mismatch), mismatch) for name, mismatch in first.values()]


def _task(name: str) -> Task:
    return Task("programs", name, "float32")


def _mismatches(result: Result, report: Report) -> List[_Mismatch]:
    """Those without a reason."""
    task = result.task
    return [
        (place, cause)
        for place, differing in (result.differing or {}).items()
        for variant, cause in differing
        if report.known.reason(task.database, task.name, place, variant, cause) is None
    ]


def _kind(mismatch: _Mismatch) -> Tuple[bool, str]:
    """What different programs have in common: not the numbers, nor the strategy."""
    place, cause = mismatch
    return place == "plain", re.sub(r"\d+", "N", cause)


def _minimized(run: Run, report: Report, program: Program, mismatch: _Mismatch, seconds: float = 20) -> Program:
    """The program without the layers and steps that the mismatch does not need."""
    ends_at = time.monotonic() + seconds
    program = replace(program, places=(Place(*mismatch[0].split()),))
    shrunk = True
    while shrunk:
        shrunk = False
        for part in program.parts():
            if time.monotonic() > ends_at:
                return program
            results = run.results([_task(part.name)], ends_at)
            if any([_kind(mismatch) == _kind(one) for result in results for one in _mismatches(result, report)]):
                program, shrunk = part, True
                break
    return program


def _text(program: Program, mismatch: _Mismatch) -> str:
    place, cause = mismatch
    return "\n".join([f"\n--names {program.name}", f"  {place}: {cause}", *program.lines()])
