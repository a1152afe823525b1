"""The bench of all sizes runs, and its figures are complete. Their values depend on the machine and the build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PYTHON = Path(__file__).resolve().parent.parent


def test_smallest_sizes_in_one_round(tmp_path: Path) -> None:
    figures, chart = tmp_path / "figures.json", tmp_path / "chart.svg"
    command = [sys.executable, str(PYTHON / "benches" / "sizes.py"), "--sizes", "64", "600000", "--rounds", "1", "--no-ray"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PYTHON), os.environ.get("PYTHONPATH", "")])}
    command += ["--json", str(figures), "--chart", str(chart)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode in (0, 1), run.stderr
    taken = json.loads(figures.read_text())
    assert list(taken) == ["64", "600000"]
    for of_size in taken.values():
        assert {"echo", "copy", "put", "put, cold", "put + get", "get, held", "call, in + out", "pipe, in + out"} <= set(of_size)
        assert all(seconds > 0 for seconds in of_size.values())
    lines = run.stdout.splitlines()
    judged = [line for line in lines if line.startswith(("met", "MISSED"))]
    met = sum(line.startswith("met") for line in judged)
    assert lines[-1] == f"{met} of {len(judged)} bounds met"
    assert (run.returncode == 0) == (met == len(judged))
    drawn = ElementTree.fromstring(chart.read_text()).findall("{*}polyline")
    assert all(len(line.attrib["points"].split()) == 2 for line in drawn)
    assert len(drawn) >= 6
