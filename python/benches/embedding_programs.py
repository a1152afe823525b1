"""Programs that embed the texts they read, by Cotensor or by a session of onnxruntime of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Optional

RECIPES = Path(__file__).resolve().parents[2] / "examples" / "recipes"
sys.path.insert(0, str(RECIPES))

from common.memory import measure, tree  # noqa: E402
from common.memory import own_daemon as started_by_clients  # noqa: E402
from common.models import skeleton  # noqa: E402

__all__ = [
    "RECIPES",
    "VARIANTS",
    "Answer",
    "engines",
    "measure",
    "own_daemon",
    "own_environment",
    "program",
    "skeleton",
    "text",
    "tree",
]

#: The import of each variant, and its class. onnxruntime has the default threads of a session.
VARIANTS = {"Cotensor": ("cotensor", "Embedder"), "onnxruntime": ("common.onnx_embedder", "OnnxEmbedder")}
#: Words of the texts, in the vocabulary of every BERT.
WORDS = "the harbour wakes before a city does while gulls turn over nets and ropes dry on its quay in cold morning light".split()
#: The largest difference of two numbers of an embedding between the variants.
TOLERANCE = 1e-4


def program(variant: str, model: Path) -> List[str]:
    """The command of a program. For each line of its input, a list of texts, it prints their mean embedding and the time that
    embedding took."""
    module, name = VARIANTS[variant]
    code = f"""
import json, sys, time
from {module} import {name}
embedder = {name}(sys.argv[1])
for line in sys.stdin:
    texts = json.loads(line)
    start = time.perf_counter()
    rows = embedder.embed(texts)
    taken = time.perf_counter() - start
    print(json.dumps({{"mean": rows.mean(0).tolist(), "seconds": taken}}), flush=True)
"""
    return [sys.executable, "-c", code, str(model)]


@dataclass
class Answer:
    """What a program prints for a line."""

    mean: List[float]
    seconds: float

    @staticmethod
    def of(line: str) -> "Answer":
        if not line:
            raise RuntimeError("a program ended before it answered")
        return Answer(**json.loads(line))

    def check(self, other: "Answer") -> None:
        """Raises `RuntimeError` unless both programs computed the same embeddings."""
        apart = max(abs(one - two) for one, two in zip(self.mean, other.mean))
        if apart > TOLERANCE or len(self.mean) != len(other.mean):
            raise RuntimeError(f"the embeddings of the variants differ by {apart}")


def text(number: int, words: int = 16) -> str:
    """A text of its own for each number."""
    count = len(WORDS)
    chosen = [WORDS[(number // count ** (at % 5) + at * at) % count] for at in range(words - 1)]
    return " ".join(chosen) + f" {number}"


@contextmanager
def own_daemon(cache: Path, *flags: str, engine: Optional[str] = None) -> Iterator[Dict[str, str]]:
    """The environment of programs of a daemon without a loaded model. The daemon writes files into `cache` once."""
    with started_by_clients() as environment:
        environment["COTENSOR_CACHE"] = str(cache)
        if engine:
            environment["COTENSOR_ENGINE"] = engine
        serve = [sys.executable, "-m", "cotensor", "serve", "--detach", *flags]
        subprocess.run(serve, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        yield environment


def own_environment() -> Dict[str, str]:
    """The environment of programs that use no daemon."""
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, [str(RECIPES), os.environ.get("PYTHONPATH")]))}


def engines(environment: Dict[str, str]) -> str:
    """The engines of the loaded models."""
    command = [sys.executable, "-m", "cotensor", "models", "ps", "--json"]
    found = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    return ", ".join(sorted({engine for model in found["models"] for engine in model["engines"]}))
