"""The snippets about sharing between models: each runs, or fails for the reason that the manifest gives."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")

import numpy  # noqa: E402
from conftest import REPOSITORY, serving  # noqa: E402
from functions_common import Program, environment  # noqa: E402
from snippets_common import SNIPPETS, listed, marked  # noqa: E402

TINY = REPOSITORY / "fixtures" / "tiny"

#: The families of the models that the snippets name.
NAMED = {
    "bert-base-uncased": "bert",
    "bert-base-cased": "bert",
    "t5-small": "t5",
    "vit-base": "vit",
    "clip-vit": "clip",
    "llama-7b": "llama",
    "google/vit-base-patch16-224": "vit",
    "openai/clip-vit-base-patch16": "clip",
    "whisper-tiny": "whisper",
}

#: Runs a file like a cell of a notebook, with `await` outside of functions, and then the assertions of the manifest.
RUN = """
import ast, asyncio, inspect, sys

def run(code, name):
    waiting = eval(compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), variables)
    if inspect.iscoroutine(waiting):
        asyncio.run(waiting)

path, setup, code, then = sys.argv[1:]
variables = {"__name__": "__main__"}
run(setup, "setup")
run(code, path)
run(then, "assertions")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with inputs and the models, under the names in the snippets."""
    (tmp_path / "photo.png").symlink_to(TINY / "images" / "tall.png")
    (tmp_path / "speech.flac").symlink_to(TINY / "audio" / "speech.flac")
    models = tmp_path / "models"
    models.mkdir()
    for name, family in NAMED.items():
        (models / name).parent.mkdir(exist_ok=True)
        if (TINY / family).is_dir():
            (models / name).symlink_to(TINY / family)
        else:
            (models / name).mkdir()
            (models / name / "config.json").write_text(json.dumps({"model_type": family}))
    return tmp_path


def bitmap(pixels: numpy.ndarray) -> bytes:
    """A BMP file of uint8 [height, width, 3]: rows of blue, green, red from the bottom, each a multiple of four bytes."""
    height, width, _ = pixels.shape
    data = numpy.pad(pixels[::-1, :, ::-1].reshape(height, 3 * width), ((0, 0), (0, -3 * width % 4))).tobytes()
    header = struct.pack("<2s3I", b"BM", 54 + len(data), 0, 54)
    return header + struct.pack("<I2i2H6I", 40, width, height, 1, 24, 0, len(data), 0, 0, 0, 0) + data


@pytest.fixture
def samples(folder: Path) -> None:
    """Images and texts on which adapters are fitted."""
    random = numpy.random.default_rng(7)
    (folder / "images").mkdir()
    for number in range(24):
        pixels = random.integers(0, 256, (40, 40, 3), dtype=numpy.uint8)
        (folder / "images" / f"{number}.bmp").write_bytes(bitmap(pixels))
    words = "a the photo of cat dog harbour boat old small red blue".split()
    texts = {" ".join(random.choice(words, 6)) for _ in range(40)}
    (folder / "texts.txt").write_text("\n".join(sorted(texts)))


def fit(folder: Path, source: str, target: str, data: str, socket: str) -> None:
    command = [sys.executable, "-m", "cotensor", "fit-adapter", "--from", f"models/{source}", "--to", f"models/{target}"]
    command += ["--data", data, "--daemon", "--socket", socket]
    subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True, timeout=300)


@pytest.mark.parametrize("snippet", [marked(each) for document in "ab" for each in listed(document)])
def test_snippet(snippet, folder, request):
    if "adapters" not in snippet:
        run_snippet(snippet, folder, {})
        return
    request.getfixturevalue("samples")
    with serving() as daemon:
        for source, target, data in snippet["adapters"]:
            fit(folder, source, target, data, str(daemon.socket))
        run_snippet(snippet, folder, {"COTENSOR_SOCKET": str(daemon.socket)})


def run_snippet(snippet, folder, variables):
    code = (SNIPPETS / snippet["file"]).read_text()
    if "instead" in snippet:
        word, other = (f'"{each}"' for each in snippet["instead"])
        assert code.count(word) == 1
        code = code.replace(word, other)
    command = [sys.executable, "-c", RUN, snippet["file"], snippet.get("setup", ""), code, snippet.get("then", "")]
    env = environment(COTENSOR_MODELS=str(folder / "models"), **variables)
    running = Program("", command=command, env=env, cwd=folder)
    try:
        out, errors = running.finish()
    finally:
        running.end()
    if "raises" in snippet:
        assert running.process.returncode != 0 and re.search(snippet["raises"], errors.splitlines()[-1]), errors
        return
    if running.process.returncode != 0 and "fails" in snippet and not re.search(snippet["fails"], errors.splitlines()[-1]):
        # This is not an AssertionError, which an expected failure would accept.
        pytest.fail(f"it fails for another reason: {errors}")
    assert running.process.returncode == 0, errors
    assert re.search(snippet.get("prints", ""), out.strip()), out
