"""The snippets about functions: each runs, or fails for the reason that the manifest gives."""

from __future__ import annotations

import re
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Dict, Iterator, List

import pytest
from functions_common import environment, free_port, program, stop_daemons, until
from snippets_common import SNIPPETS, listed, marked

from cotensor.client import SharedTensorClient

LISTED = listed("c")


def test_every_snippet_is_listed():
    assert len(LISTED) > 10
    for path in (SNIPPETS / "c").glob("*.py"):
        assert "cotensor" in path.read_text() or "basic_function_sharing" in path.read_text()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cot-") as name:
        yield Path(name)
        stop_daemons(Path(name))


def test_shared_functions_of_snippets_are_called():
    for each in LISTED:
        shares = ".share(" in (SNIPPETS / each["file"]).read_text()
        assert shares == ("calls" in each or "not_called" in each), each["file"]


@contextmanager
def served(module: str, folder: Path, function: str) -> Iterator[Dict[str, str]]:
    """Runs shared-tensor-server with a snippet. Yields the environment for its clients."""
    socket = folder / "s"
    # The snippets name the default port, which may be in use here. COTENSOR_SOCKET takes precedence over the port.
    env = environment(COTENSOR_SOCKET=str(socket), PYTHONPATH=str(SNIPPETS / "c"))
    command = [sys.executable, "-m", "cotensor.server", str(SNIPPETS / module), "--port", str(free_port())]
    with program("", command=command, env=env):
        until(socket.exists)
        with SharedTensorClient(socket=socket) as client:
            until(lambda: client.has_function(function))
        yield env


def names_in(module: str) -> List[str]:
    return re.findall(r'\.share\(name="([^"]+)"', (SNIPPETS / module).read_text())


@pytest.mark.parametrize("snippet", [marked(each) for each in LISTED])
def test_snippet(snippet, folder):
    with ExitStack() as stack:
        env = environment(COTENSOR_SOCKET=str(folder / "s"), COTENSOR_AUTOSTART="1", PYTHONPATH=str(SNIPPETS / "c"))
        if "served_by" in snippet:
            env = stack.enter_context(served(snippet["served_by"], folder, "add_numbers"))
        running = stack.enter_context(program("", command=[sys.executable, str(SNIPPETS / snippet["file"])], env=env))
        out, errors = running.finish()
        assert running.process.returncode == 0, errors
        assert re.search(snippet.get("prints", ""), out.strip()), out


@pytest.mark.parametrize("snippet", [marked(each) for each in LISTED if "calls" in each])
def test_functions_of_snippet(snippet, folder):
    names = names_in(snippet["file"])
    assert all(name in snippet["calls"] or name == "create_tensor" for name in names)
    with served(snippet["file"], folder, names[-1]) as env:
        imports = "import torch\n" if snippet.get("needs") == "torch" else ""
        code = f"from cotensor.client import SharedTensorClient\n{imports}client = SharedTensorClient()\n{snippet['calls']}"
        with program(code, env=env) as running:
            out, errors = running.finish()
            assert running.process.returncode == 0, errors
