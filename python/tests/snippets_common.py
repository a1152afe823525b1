"""The manifest of the snippets, for the tests that run them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Dict, List

import pytest

tomllib = pytest.importorskip("tomllib")

SNIPPETS = Path(__file__).parent / "snippets"


def listed(document: str) -> List[Dict[str, Any]]:
    """The manifest's entries for one document. Fails unless every snippet has an entry."""
    manifest = tomllib.loads((SNIPPETS.parent / "snippets.toml").read_text())["snippet"]
    found = [each for each in manifest if each["file"].startswith(f"{document}/")]
    files = {f"{document}/{path.name}" for path in (SNIPPETS / document).glob("*.py")}
    assert files == {each["file"] for each in found} and files
    return found


def marked(each: Dict[str, Any]) -> Any:
    """An entry as a test parameter. The entry can mark the test as skipped or as an expected failure."""
    marks = []
    if "needs" in each:
        missing = importlib.util.find_spec(each["needs"]) is None
        marks.append(pytest.mark.skipif(missing, reason=f"needs {each['needs']}"))
    if "waits_for" in each:
        marks.append(pytest.mark.xfail(strict=True, reason=f"row {each['waits_for']} of features.md", raises=AssertionError))
    with_this = f" with {each['instead'][1]}" if "instead" in each else f" {each['case']}" if "case" in each else ""
    return pytest.param(each, id=each["file"] + with_this, marks=marks)
