"""The snippets of the documents about functions: each runs, or fails for the reason that the manifest gives."""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator

import pytest
from functions_common import Program, environment, free_port, until

from cotensor.client import SharedTensorClient

tomllib = pytest.importorskip("tomllib")

HERE = Path(__file__).parent
LISTED = tomllib.loads((HERE / "snippets.toml").read_text())["snippet"]
MINE = [each for each in LISTED if each["file"].startswith("c/")]


def test_every_snippet_is_listed():
    there = {f"c/{path.name}" for path in (HERE / "snippets" / "c").glob("*.py")}
    assert there == {each["file"] for each in MINE} and len(there) > 10
    for path in (HERE / "snippets" / "c").glob("*.py"):
        assert "cotensor" in path.read_text() or "basic_function_sharing" in path.read_text()


def marked(each: dict[str, Any]) -> Any:
    marks = []
    if "needs" in each:
        missing = importlib.util.find_spec(each["needs"]) is None
        marks.append(pytest.mark.skipif(missing, reason=f"needs {each['needs']}"))
    if "waits_for" in each:
        marks.append(
            pytest.mark.xfail(strict=True, reason=f"row {each['waits_for']} of features.md", raises=AssertionError)
        )
    return pytest.param(each, id=each["file"], marks=marks)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cot-") as name:
        yield Path(name)


@pytest.mark.parametrize("snippet", [marked(each) for each in MINE])
def test_snippet(snippet, folder):
    socket, port = folder / "s", free_port()
    # The snippets name the usual port, which may be in use here: the socket decides.
    env = environment(COTENSOR_SOCKET=str(socket), PYTHONPATH=str(HERE / "snippets" / "c"))
    server = None
    try:
        if "served_by" in snippet:
            module = str(HERE / "snippets" / snippet["served_by"])
            server = Program(
                "", command=[sys.executable, "-m", "cotensor.server", module, "--port", str(port)], env=env
            )
            until(socket.exists)
            with SharedTensorClient(socket=socket) as client:
                until(lambda: client.has_function("add_numbers"))
        running = Program("", command=[sys.executable, str(HERE / "snippets" / snippet["file"])], env=env)
        out, errors = running.finish()
        assert running.process.returncode == 0, errors
        assert re.search(snippet.get("prints", ""), out.strip()), out
    finally:
        if server is not None:
            server.end()
