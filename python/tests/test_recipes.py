"""The recipes without torch. Each runs in processes of its own and gives the answers of the program without Cotensor."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Daemon
from functions_common import environment
from recipes_common import MIB, RECIPES, measured


@pytest.mark.parametrize("preload", [[], ["--preload"]], ids=["", "preload"])
def test_workers_of_gunicorn_share_a_model(preload: list[str]) -> None:
    pytest.importorskip("uvicorn_worker")
    found = measured("gunicorn-fastapi", "--model", "tiny", *preload)
    assert len(found["with"]["answers"]) == 2
    assert found["with"]["model_process_bytes"] > 5 * MIB


def test_sessions_of_an_mcp_server_share_a_model() -> None:
    pytest.importorskip("mcp")
    found = measured("mcp-embeddings", "--model", "tiny")
    notes = (RECIPES / "mcp-embeddings" / "notes.txt").read_text().splitlines()
    assert len(found["with"]["answers"]) == 3 and set(found["with"]["answers"]) <= set(notes)
    assert found["with"]["model_process_bytes"] > 5 * MIB


def test_the_program_without_cotensor_gives_its_vectors(daemon: Daemon, tmp_path: Path) -> None:
    """Also where the tokenizer pads each text to a fixed length, as that of MiniLM does."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    shutil.copytree(RECIPES.parents[1] / "fixtures" / "tiny" / "bert", tmp_path / "model")
    tokenizer = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    padding = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    tokenizer["padding"] = {"strategy": {"Fixed": 32}, **padding}
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    program = (
        "import sys, numpy, cotensor; from common.onnx_embedder import OnnxEmbedder; texts = ['a note', 'a ferry at noon']\n"
        "ours = cotensor.Embedder(sys.argv[1]).embed(texts); theirs = OnnxEmbedder(sys.argv[1]).embed(texts)\n"
        "numpy.testing.assert_allclose(ours, theirs, atol=1e-5)"
    )
    given = environment(COTENSOR_SOCKET=str(daemon.socket), PYTHONPATH=str(RECIPES))
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "model")], env=given, check=True, timeout=60)


@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_processes_of_a_pool_share_an_array(start: str) -> None:
    found = measured("process-pools", "--start", start, "--vectors", "80000", processes=3)
    # A query is one of the vectors, which is nearest to itself.
    assert found["with"]["answers"] == list(range(16))
    # Without, the program and three processes have a copy each. The daemon and the extension take less than two copies.
    assert found["without"]["total_bytes"] - found["with"]["total_bytes"] > 80_000 * 384 * 4


@pytest.mark.parametrize("start", ["forkserver", "spawn", "fork"])
def test_search_prints_the_nearest_vectors(start: str, daemon: Daemon, tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((200, 8), np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    command = [sys.executable, "search.py", str(tmp_path / "vectors.npy"), "--processes", "2", "--start", start]
    given = environment(COTENSOR_SOCKET=str(daemon.socket))
    printed = subprocess.check_output(command, cwd=RECIPES / "process-pools", env=given, text=True, timeout=60)
    assert [int(word) for word in printed.split()] == list(range(16))


def test_every_recipe_has_a_page() -> None:
    index = (RECIPES / "README.md").read_text()
    recipes = sorted(path.parent for path in RECIPES.glob("*/measure.py"))
    assert len(recipes) == 6
    pages = dict(re.findall(r"^\| \[([a-z-]+)\]\(([^)]+)\)", index, re.MULTILINE))
    assert sorted(pages) == [recipe.name for recipe in recipes]
    for recipe in recipes:
        assert f"examples/recipes/{recipe.name}/measure.py" in (RECIPES / pages[recipe.name]).read_text()
