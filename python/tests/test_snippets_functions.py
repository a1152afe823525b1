"""The snippets of the documents about functions: each runs, or fails for the reason that the manifest gives."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import pytest
from functions_common import Program, environment, free_port, until
from snippets_common import SNIPPETS, listed, marked

from cotensor.client import SharedTensorClient

MINE = listed("c")


def test_every_snippet_is_listed():
    assert len(MINE) > 10
    for path in (SNIPPETS / "c").glob("*.py"):
        assert "cotensor" in path.read_text() or "basic_function_sharing" in path.read_text()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cot-") as name:
        yield Path(name)


@pytest.mark.parametrize("snippet", [marked(each) for each in MINE])
def test_snippet(snippet, folder):
    socket, port = folder / "s", free_port()
    # The snippets name the usual port, which may be in use here: the socket decides.
    env = environment(COTENSOR_SOCKET=str(socket), PYTHONPATH=str(SNIPPETS / "c"))
    server = None
    try:
        if "served_by" in snippet:
            module = str(SNIPPETS / snippet["served_by"])
            server = Program(
                "", command=[sys.executable, "-m", "cotensor.server", module, "--port", str(port)], env=env
            )
            until(socket.exists)
            with SharedTensorClient(socket=socket) as client:
                until(lambda: client.has_function("add_numbers"))
        running = Program("", command=[sys.executable, str(SNIPPETS / snippet["file"])], env=env)
        out, errors = running.finish()
        assert running.process.returncode == 0, errors
        assert re.search(snippet.get("prints", ""), out.strip()), out
    finally:
        if server is not None:
            server.end()
