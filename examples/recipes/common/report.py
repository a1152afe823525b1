"""The arguments of `measure.py`, and what it prints."""

from __future__ import annotations

import argparse
import json
import os
import platform
from typing import Any, Dict, Optional

from .memory import Memory


def arguments(about: str, models: Optional[str] = None) -> argparse.ArgumentParser:
    """A parser with the options of all recipes. `models` describes the values of `--model`, of which the first is the default."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--processes", type=_count, default=4, help="number of processes (default 4)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    if models:
        parser.add_argument("--model", default=models.split(",")[0], help=f"{models} (default: the first)")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 64:
        raise argparse.ArgumentTypeError("pass a number from 1 to 64")
    return count


def report(options: argparse.Namespace, recipe: str, what: str, variants: Dict[str, Memory], **more: Any) -> None:
    """Prints the memory of each variant. `what` is the model or the data, with its size. `more` goes into the JSON object."""
    if options.json:
        found = {"recipe": recipe, "processes": options.processes, "of": what, "hardware": hardware()}
        print(json.dumps({**found, **{name: each.json() for name, each in variants.items()}, **more}))
        return
    print(f"{recipe}: {options.processes} processes, {what}; {hardware()}")
    print(f"{'MiB':24}" + "".join(f"{name:>20}" for name in variants))
    rows = [
        ("processes", "processes"),
        ("daemon", "daemon"),
        ("model process", "model_process"),
        ("tensors nobody maps", "unmapped"),
        ("sum", "total"),
    ]
    for title, field in rows:
        sizes = [getattr(each, field) for each in variants.values()]
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
