"""The manifest of the documents' snippets, for the tests that run them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Dict, List

import pytest

tomllib = pytest.importorskip("tomllib")

SNIPPETS = Path(__file__).parent / "snippets"


def listed(document: str) -> List[Dict[str, Any]]:
    """The manifest's entries for one document, of which none may be missing."""
    manifest = tomllib.loads((SNIPPETS.parent / "snippets.toml").read_text())["snippet"]
    found = [each for each in manifest if each["file"].startswith(f"{document}/")]
    there = {f"{document}/{path.name}" for path in (SNIPPETS / document).glob("*.py")}
    assert there == {each["file"] for each in found} and there
    return found


def marked(each: Dict[str, Any]) -> Any:
    """An entry as a test's parameter, which is skipped or has to fail as it says."""
    marks = []
    if "needs" in each:
        missing = importlib.util.find_spec(each["needs"]) is None
        marks.append(pytest.mark.skipif(missing, reason=f"needs {each['needs']}"))
    if "waits_for" in each:
        marks.append(pytest.mark.xfail(strict=True, reason=f"row {each['waits_for']} of features.md", raises=AssertionError))
    with_this = f" with {each['instead'][1]}" if "instead" in each else ""
    return pytest.param(each, id=each["file"] + with_this, marks=marks)
