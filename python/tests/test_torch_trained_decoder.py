"""The decoder that measures weights of few bits: a few steps of its training, and its folder in Cotensor."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from functions_common import environment

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")


def run(*arguments: object) -> str:
    line = [sys.executable, *map(str, arguments)]
    ended = subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=500)
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    return ended.stdout


def command(*arguments: object) -> Any:
    return json.loads(run("-m", "cotensor", *arguments, "--json"))


@pytest.mark.timeout(600)
def test_a_short_training_gives_a_model_that_opens(tmp_path: Path) -> None:
    folder = tmp_path / "decoder"
    printed = run(REPOSITORY / "fixtures/scripts/train_decoder.py", folder, "--steps", 20)
    first, last = (float(re.findall(rf"step {step}: loss ([\d.]+)", printed)[0]) for step in (0, 19))
    assert 6.8 < first < 7.1 and last < first - 0.3, printed

    texts, held_out = ((folder / f"{name}.txt").read_text().splitlines() for name in ["calibration", "held-out"])
    assert len(texts) == 160 and len(held_out) > 50 and not set(texts) & set(held_out)

    answer = command("run", folder, "text-generation", "--text", held_out[0], "--max-new-tokens", 4)["users"][0]["answer"]
    assert answer["tokens"] == 4, answer

    # The rows of all matrices are whole groups.
    report = command("quantize", folder, "-o", tmp_path / "small", "--bits", 8)["graphs"][0]
    assert len(report["matrices"]) == 30 and {matrix["group"] for matrix in report["matrices"]} == {32}
