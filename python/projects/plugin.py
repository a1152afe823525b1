"""A plugin of pytest: writes what each test gave, and adds :mod:`projects.inside` to the processes that run tests.

COTENSOR_PROJECTS is JSON with "mode", "memory", "models", "variables", "results" (a file, one line for each phase of a test),
"only" (a file with the names of the tests to run, or null) and "sample" (at most so many tests of a file, or null).
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, List

import pytest

_settings: Dict[str, Any] = json.loads(os.environ["COTENSOR_PROJECTS"])
_RUNS_TESTS = "PYTEST_XDIST_WORKER" in os.environ


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Before any file of the project is imported."""
    if _RUNS_TESTS:
        from . import inside

        early_config.pluginmanager.register(inside.Inside(_settings))


def pytest_collection_modifyitems(config: Any, items: List[Any]) -> None:
    """Chooses the tests."""
    chosen = items[:]
    if _settings["only"] is not None:
        only = set(Path(_settings["only"]).read_text().splitlines())
        chosen = [item for item in chosen if item.nodeid in only]
    elif _settings["sample"] is not None:
        files = defaultdict(list)
        for item in chosen:
            files[item.nodeid.split("::")[0]].append(item)
        chosen = [one for tests in files.values() for one in _spread(tests, _settings["sample"])]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def _spread(tests: List[Any], most: int) -> List[Any]:
    """At most so many tests, from the whole list."""
    return tests if len(tests) <= most else [tests[at * len(tests) // most] for at in range(most)]


def pytest_runtest_logreport(report: Any) -> None:
    """Writes a line for each phase of a test; the processes that run tests send theirs to the one that writes."""
    if _RUNS_TESTS:
        return
    line = {
        "test": report.nodeid,
        "when": report.when,
        "outcome": "skipped" if hasattr(report, "wasxfail") else report.outcome,
        "error": _error(report) if report.failed else "",
        "offloaded": dict(report.user_properties).get("offloaded", 0),
    }
    with open(_settings["results"], "a") as file:
        print(json.dumps(line), file=file)


def _error(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else str(crash.message)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else ""
