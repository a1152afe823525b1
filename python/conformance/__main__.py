"""Runs the comparison: ``python -m conformance [DATABASE …]``."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Iterable, Iterator, List

import torch

import cotensor.tensorref

from .fuzzing import fuzz
from .places import places
from .report import Known, Report
from .runner import Run, Selection, Task, database

_DTYPES = {
    # First those with long tasks: at the end, no process waits for another one.
    "modules": ["float32", "bfloat16"],
    "operators": ["float32", "bfloat16", "complex64"],
    "optimizers": ["float32"],
}
_STRATEGIES = ["genoa", "flow", "lru", "cpu", "references"]


def main() -> int:
    """The status of the process: 0 if all mismatches are known."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("databases", nargs="*", help="operators, modules, optimizers (these by default), or programs")
    parser.add_argument("--strategies", nargs="+", default=_STRATEGIES, help="Strategies of offload, or references")
    parser.add_argument("--dtypes", nargs="+", help="dtypes of the samples")
    parser.add_argument("--names", nargs="+", help="Operators, modules or optimizers")
    parser.add_argument("--share", type=float, default=1.0, help="Share of the names and dtypes, chosen by the seed")
    parser.add_argument("--cases-max", type=int, default=1 << 30, help="Samples of each name and dtype")
    parser.add_argument("--places-max", type=int, default=3, help="Places of each case, chosen by the seed (%(default)s)")
    many = "Cases of each name and dtype with so many places; the others have one (%(default)s)"
    parser.add_argument("--full-cases", type=int, default=500, help=many)
    parser.add_argument("--sample", action="store_true", help="The sample of CI, with floors of its own")
    parser.add_argument("--seed", type=int, default=0, help="Chooses the sample, or the first of the programs")
    parser.add_argument("--count", type=int, help="Random programs; by default, until the minutes end")
    parser.add_argument("--jobs", type=int, default=2, help="Processes at a time")
    parser.add_argument("--minutes", type=float, default=60, help="No task starts later; a run that is cut short fails")
    parser.add_argument("--case-seconds", type=float, default=60, help="A case of more seconds is a failure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write all mismatches as JSON")
    options = parser.parse_args()

    if options.sample:
        options.share, options.seed, options.cases_max = 0.05, 10, 2
        options.strategies = ["genoa", "flow", "lru", "references"]
        options.places_max = len(places(options.strategies))
    warnings.simplefilter("ignore")
    # Processes that fork have no other threads of PyTorch.
    torch.set_num_threads(1)
    # Registers the device before the first backward pass.
    cotensor.tensorref.simulated_device()
    started = time.monotonic()
    repeated = ["plain", "genoa", "flow"] if options.sample else None
    selection = Selection(options.share, options.seed, options.cases_max, options.places_max, options.full_cases, repeated)
    run = Run(places(options.strategies), selection, options.jobs, options.case_seconds)
    if options.databases == ["programs"]:
        return _fuzz(run, options)
    tasks = [task for task in _tasks(options) if selection.has(task)]
    report = Report(Known("sample" if options.sample else "whole"))
    begun: List[Task] = []
    # What is here stays; collections in the processes would copy its pages.
    gc.freeze()
    printed, interrupted = started, False
    try:
        for result in run.results(_noted(tasks, begun), started + 60 * options.minutes):
            report.add(result)
            if time.monotonic() - printed > 30:
                printed = time.monotonic()
                print(f"{len(begun)} of {len(tasks)} names, {printed - started:.0f} s", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        interrupted = True
    print("\n".join(report.lines()))
    failures = _failures(report)
    if interrupted:
        failures.append(f"interrupted after {len(begun)} of {len(tasks)} names")
    if time.monotonic() - started > 60 * options.minutes:
        failures.append(f"the run was cut short after {options.minutes} minutes")
    if options.json is not None:
        options.json.write_text(json.dumps({**report.data(), "failures": failures}, indent=1))
    print("\n" + "\n".join(failures or ["passed"]))
    return 1 if failures else 0


def _noted(tasks: Iterable[Task], begun: List[Task]) -> Iterator[Task]:
    """The tasks, each of which is added to ``begun`` when it begins."""
    for task in tasks:
        begun.append(task)
        yield task


def _fuzz(run: Run, options: argparse.Namespace) -> int:
    """Runs random programs."""
    report = Report(Known("whole"))
    gc.freeze()
    texts = fuzz(run, report, options.seed, options.count, options.minutes, options.names)
    print("\n".join(report.lines() + texts))
    failures = texts + _failures(report)
    print("" if failures else "\npassed")
    return 1 if failures else 0


def _failures(report: Report) -> List[str]:
    """What makes the run fail."""
    return report.failures() if report.total else ["no case ran"]


def _tasks(options: argparse.Namespace) -> List[Task]:
    chosen = options.databases or list(_DTYPES)
    return [
        Task(kind, name, dtype)
        for kind in chosen
        for dtype in options.dtypes or _DTYPES[kind]
        for name in database(kind).names()
        if options.names is None or name in options.names
    ]


if __name__ == "__main__":
    sys.exit(main())
