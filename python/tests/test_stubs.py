"""The type stubs agree with the extension."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")


def test_stubs_agree_with_the_extension() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "cotensor._native"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "no issues found in 1 module" in ran.stdout


def test_public_items_of_the_extension_are_documented() -> None:
    import cotensor._native as native

    missing = []
    for name in native.__all__:
        item = getattr(native, name)
        if not callable(item):
            continue
        members = vars(item) if isinstance(item, type) else {}
        public = {f"{name}.{part}": member for part, member in members.items() if not part.startswith("_")}
        missing += [path for path, documented in {name: item, **public}.items() if not documented.__doc__]
    assert not missing
