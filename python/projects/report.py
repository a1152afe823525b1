"""Compares the results of the modes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List

from .catalog import Project

#: Of the tests that pass with "plain", the share that has to pass with each strategy.
WANTED = 0.99


@dataclass
class Outcome:
    """What a test gave."""

    outcome: str = "not run"
    error: str = ""
    #: Models that were offloaded.
    offloaded: int = 0


def read(path: Path) -> Dict[str, Outcome]:
    """The results that :mod:`projects.plugin` has written."""
    found: Dict[str, Outcome] = {}
    for text in path.read_text().splitlines() if path.is_file() else []:
        line = json.loads(text)
        one = found.setdefault(line["test"], Outcome())
        one.offloaded = max(one.offloaded, line["offloaded"])
        if line["outcome"] == "failed":
            one.outcome, one.error = "failed", one.error or line["error"]
        elif one.outcome == "not run" and (line["when"] == "call" or line["outcome"] == "skipped"):
            one.outcome = line["outcome"]
    return found


@dataclass
class Row:
    """The results of a project, by mode."""

    project: Project
    version: str
    results: Dict[str, Dict[str, Outcome]] = field(default_factory=dict)

    def passed(self, mode: str) -> List[str]:
        """The tests that pass with a mode."""
        return [name for name, one in self.results.get(mode, {}).items() if one.outcome == "passed"]

    def missing(self, mode: str) -> Dict[str, str]:
        """The tests that pass with "plain" and not with a strategy, with their errors."""
        results = self.results[mode]
        passed, absent = set(self.passed(mode)), Outcome()
        return {
            name: results.get(name, absent).error or results.get(name, absent).outcome
            for name in self.passed("plain")
            if name not in passed
        }

    def exempt(self, mode: str) -> List[str]:
        """Those of :meth:`missing` with a known reason."""
        return [name for name in self.missing(mode) if self.project.is_exempt(name, mode)]

    def ratio(self, mode: str) -> float:
        """Of the tests that pass with "plain", the share that passes with a strategy or has a reason not to."""
        return 1 - (len(self.missing(mode)) - len(self.exempt(mode))) / max(len(self.passed("plain")), 1)

    def offloaded(self, mode: str) -> int:
        """The tests that pass with "plain" in which a strategy offloads a model."""
        plain = set(self.passed("plain"))
        return len([name for name, one in self.results[mode].items() if one.offloaded and name in plain])


def lines(rows: List[Row], modes: List[str]) -> List[str]:
    """The report as text."""
    strategies = [mode for mode in modes if mode not in ("host", "plain")]
    head = f"{'project':<12}{'version':<10}" + "".join([f"{name:>9}" for name in ["tests", *modes]])
    text = [head + "".join([f"{name + ' ratio':>14}" for name in strategies]) + f"{'exempt':>9}{'offloaded':>11}"]
    for row in rows:
        counts = [len(row.results.get("plain", {})), *[len(row.passed(mode)) for mode in modes]]
        ratios = "".join([f"{row.ratio(mode):>14.4f}" for mode in strategies])
        exempt = max([len(row.exempt(mode)) for mode in strategies], default=0)
        used = max([row.offloaded(mode) for mode in strategies], default=0)
        columns = "".join([f"{one:>9}" for one in counts]) + ratios + f"{exempt:>9}{used:>11}"
        text.append(f"{row.project.name:<12}{row.version:<10}{columns}")
    for row in rows:
        for mode in strategies:
            exempt_here = set(row.exempt(mode))
            for name, error in row.missing(mode).items():
                known = " (exempt)" if name in exempt_here else ""
                text.append(f"\n{row.project.name}, {mode}: {name}{known}\n  {error}")
    return text


def failures(rows: List[Row], modes: List[str]) -> List[str]:
    """What makes the run fail."""
    found = []
    for row in rows:
        if not row.passed("plain"):
            found.append(f"{row.project.name}: no test passes with plain")
            continue
        for mode in modes:
            if mode in ("host", "plain"):
                continue
            if row.ratio(mode) < WANTED:
                found.append(f"{row.project.name}, {mode}: {row.ratio(mode):.4f} is below {WANTED}")
            if not row.offloaded(mode):
                found.append(f"{row.project.name}, {mode}: no test offloads a model")
    return found or ([] if rows else ["no project ran"])


def data(rows: List[Row], modes: List[str]) -> Dict[str, Any]:
    """The report as data."""
    return {
        "projects": [
            {
                "project": row.project.name,
                "version": row.version,
                "modes": {mode: {name: vars(one) for name, one in results.items()} for mode, results in row.results.items()},
            }
            for row in rows
        ],
        "failures": failures(rows, modes),
    }
