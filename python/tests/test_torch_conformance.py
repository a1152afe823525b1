"""A sample of `make test-conformance`, and what its report counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tomllib")
pytest.importorskip("expecttest")

PACKAGE = Path(__file__).resolve().parents[1]


def run(*args, status=0):
    command = [sys.executable, "-m", "conformance", *args]
    done = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    assert done.returncode == status, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
