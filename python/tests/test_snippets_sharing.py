"""The snippets of the document about sharing between models: each runs, or fails for the reason that the manifest gives."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from conftest import REPOSITORY  # noqa: E402
from functions_common import Program, environment  # noqa: E402
from snippets_common import SNIPPETS, listed, marked  # noqa: E402

TINY = REPOSITORY / "fixtures" / "tiny"

#: The families of the models that the document names.
NAMED = {
    "bert-base-uncased": "bert",
    "bert-base-cased": "bert",
    "t5-small": "t5",
    "vit-base": "vit",
    "clip-vit": "clip",
    "llama-7b": "llama",
}

#: Runs a file like a cell of a notebook, with `await` outside of functions, and then the assertions of the manifest.
RUN = """
import ast, asyncio, inspect, sys

def run(code, name):
    waiting = eval(compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), variables)
    if inspect.iscoroutine(waiting):
        asyncio.run(waiting)

path, code, then = sys.argv[1:]
variables = {"__name__": "__main__"}
run(code, path)
run(then, "assertions")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a photo and the models, under the names in the document."""
    (tmp_path / "photo.png").symlink_to(TINY / "images" / "tall.png")
    models = tmp_path / "models"
    models.mkdir()
    for name, family in NAMED.items():
        if (TINY / family).is_dir():
            (models / name).symlink_to(TINY / family)
        else:
            (models / name).mkdir()
            (models / name / "config.json").write_text(json.dumps({"model_type": family}))
    return tmp_path


@pytest.mark.parametrize("snippet", [marked(each) for each in listed("b")])
def test_snippet(snippet, folder):
    code = (SNIPPETS / snippet["file"]).read_text()
    if "instead" in snippet:
        word, other = (f'"{each}"' for each in snippet["instead"])
        assert code.count(word) == 1
        code = code.replace(word, other)
    command = [sys.executable, "-c", RUN, snippet["file"], code, snippet.get("then", "")]
    env = environment(COTENSOR_MODELS=str(folder / "models"))
    running = Program("", command=command, env=env, cwd=folder)
    try:
        out, errors = running.finish()
    finally:
        running.end()
    if running.process.returncode != 0 and "fails" in snippet and not re.search(snippet["fails"], errors.splitlines()[-1]):
        # This is not an AssertionError, which an expected failure would accept.
        pytest.fail(f"it fails for another reason: {errors}")
    assert running.process.returncode == 0, errors
    assert re.search(snippet.get("prints", ""), out.strip()), out
