"""The arguments of `measure.py`, its two runs, and what it prints."""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import re
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

from .memory import Memory

#: The names of the two programs of a recipe.
VARIANTS = ("without", "with")
#: The memory of each variant, and its answers.
Runs = Dict[str, Tuple[Memory, Any]]


def arguments(about: str, models: Optional[str] = None) -> argparse.ArgumentParser:
    """A parser with the options of all recipes. `models` describes the values of `--model`, of which the first is the default."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--processes", type=_count, default=4, help="number of processes (default 4)")
    parser.add_argument("--only", choices=VARIANTS, help="run one of the two programs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    if models:
        parser.add_argument("--model", default=re.split("[ ,]", models)[0], help=f"{models} (default: the first)")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 64:
        raise argparse.ArgumentTypeError("pass a number from 1 to 64")
    return count


def run_variants(options: argparse.Namespace, recipe: Path, run: Callable[[Path], Tuple[Memory, Any]]) -> Runs:
    """Runs the program in the folder `without` of a recipe, and then the program of the recipe."""
    return {
        name: run(recipe if name == "with" else recipe / "without") for name in VARIANTS if options.only in (None, name)
    }


def report(
    options: argparse.Namespace, recipe: Path, what: str, runs: Runs, same: Callable[[Any, Any], bool] = operator.eq
) -> None:
    """Prints the memory of each variant. `what` is the model or the data, with its size.

    Raises `SystemExit` when the answers of both are not the `same`.
    """
    if len(runs) == 2 and not same(runs["without"][1], runs["with"][1]):
        raise SystemExit(f"the answers are not the same: {runs}")
    if options.json:
        found = {"recipe": recipe.name, "processes": options.processes, "of": what, "hardware": hardware()}
        print(json.dumps({**found, **{name: {**memory.json(), "answers": answers} for name, (memory, answers) in runs.items()}}))
        return
    print(f"{recipe.name}: {options.processes} processes, {what}; {hardware()}")
    print(f"{'MiB':24}" + "".join(f"{name:>20}" for name in runs))
    rows = [
        ("processes", "processes"),
        ("daemon", "daemon"),
        ("model process", "model_process"),
        ("unmapped tensors", "unmapped"),
        ("sum", "total"),
    ]
    for title, field in rows:
        sizes = [getattr(each, field) for each, _ in runs.values()]
        if any(sizes):
            print(f"{title:24}" + "".join(f"{size / 2**20:20.0f}" for size in sizes))


def hardware() -> str:
    """The processor and its number of cores."""
    name = platform.machine()
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {len(os.sched_getaffinity(0))} cores"
