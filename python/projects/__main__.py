"""Runs the tests of other projects: ``python -m projects [PROJECT …]``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Optional

from . import report
from .catalog import Project, projects
from .sources import SourceError, tests_of

_MODES = ["host", "plain", "flow", "genoa"]
#: This package, for the processes of the tests.
_PYTHON = Path(__file__).resolve().parents[1]


def main() -> int:
    """The status of the process: 0 if each project reaches the wanted ratio with each strategy."""
    known = projects()
    parser = argparse.ArgumentParser(prog="projects", description=__doc__)
    parser.add_argument("projects", nargs="*", help=f"{', '.join(known)}; all by default")
    parser.add_argument("--modes", nargs="+", choices=_MODES, default=_MODES, help="plain runs in any case")
    parser.add_argument("--memory", choices=["ample", "half"], default="ample", help="Of the device; half: of a model's weights")
    parser.add_argument("--sample", type=int, metavar="N", help="At most N tests of each file, from the whole of it")
    parser.add_argument("--files", nargs="+", help="Names of files, such as test_layers.py")
    parser.add_argument("--source", action="append", default=[], metavar="PROJECT=FOLDER", help="Tests of a folder")
    parser.add_argument("--jobs", type=int, default=2, help="Processes at a time")
    parser.add_argument("--test-seconds", type=float, default=60, help="A test of more seconds fails")
    parser.add_argument("--minutes", type=float, default=60, help="A project's mode of more minutes is cut short, and fails")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="Where archives are unpacked")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write the results of all tests as JSON")
    options = parser.parse_args()
    unknown = [name for name in options.projects if name not in known]
    if unknown:
        parser.error(f"projects: {unknown[0]!r} is none of {', '.join(known)}")

    modes = [mode for mode in _MODES if mode in options.modes or mode == "plain"]
    sources = dict([one.split("=", 1) for one in options.source])
    rows, failed = [], []
    for name in options.projects or known:
        try:
            folder = Path(sources[name]).resolve() if name in sources else tests_of(known[name], options.work.resolve())
        except SourceError as failure:
            failed.append(str(failure))
            continue
        row = report.Row(known[name], known[name].version if name not in sources else "folder")
        for mode in modes:
            only = row.passed("plain") if mode not in ("host", "plain") else None
            row.results[mode] = _run(known[name], folder, mode, only, options)
            print(f"{name}, {mode}: {len(row.passed(mode))} of {len(row.results[mode])} passed", file=sys.stderr, flush=True)
        rows.append(row)
    print("\n".join(report.lines(rows, modes)))
    failed += report.failures(rows, modes)
    if options.json is not None:
        options.json.write_text(json.dumps({**report.data(rows, modes), "failures": failed}, indent=1))
    print("\n" + "\n".join(failed or ["passed"]))
    return 1 if failed else 0


def _run(
    project: Project, folder: Path, mode: str, only: Optional[List[str]], options: argparse.Namespace
) -> Dict[str, report.Outcome]:
    """Runs the tests of a project with one mode."""
    device = "cpu" if mode == "host" else "simulated"
    names = {"device": device, "kind": "cpu" if mode == "host" else "privateuse1"}
    with tempfile.TemporaryDirectory() as place:
        results, chosen, settings = Path(place) / "results", Path(place) / "only", Path(place) / "pytest.ini"
        # Not those of the project.
        settings.write_text("[pytest]\n")
        if only is not None:
            chosen.write_text("\n".join(only))
        own = {
            "mode": mode,
            "memory": options.memory,
            "models": project.models,
            "variables": {name: value.format(**names) for name, value in project.variables.items()},
            "results": str(results),
            "only": None if only is None else str(chosen),
            "sample": options.sample,
        }
        environment = {
            # Without those of a pytest that this run is a test of.
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            **{name: value.format(**names) for name, value in project.environment.items()},
            "COTENSOR_PROJECTS": json.dumps(own),
            "PYTHONPATH": os.pathsep.join([str(_PYTHON), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        files = [name for name in project.files if options.files is None or Path(name).name in options.files]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "projects.plugin", "-p", "no:cacheprovider", "-c", str(settings)]
        # A test that ends its process fails, and the next ones go on in another.
        command += ["-n", str(options.jobs), "--max-worker-restart", "1000", "--rootdir", str(folder), "-W", "ignore"]
        command += ["--timeout", str(options.test_seconds), "--tb", "line", *files]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60 * options.minutes,
                check=False,
            )
            output = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            output = f"cut short after {options.minutes} minutes"
        found = report.read(results)
        if not found:
            print(output[-3000:], file=sys.stderr)
        return found


if __name__ == "__main__":
    sys.exit(main())
