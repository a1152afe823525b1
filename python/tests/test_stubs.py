"""The extension's types say what the extension has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")


def test_stubs_and_run_time_agree() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "cotensor._native"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "no issues found in 1 module" in ran.stdout


def test_everything_public_is_documented() -> None:
    import cotensor._native as native

    missing = []
    for name in native.__all__:
        thing = getattr(native, name)
        if not callable(thing):
            continue
        members = vars(thing) if isinstance(thing, type) else {}
        public = {f"{name}.{part}": member for part, member in members.items() if not part.startswith("_")}
        missing += [where for where, what in {name: thing, **public}.items() if not what.__doc__]
    assert not missing
