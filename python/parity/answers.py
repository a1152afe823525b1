"""The numbers that the table compares: of sentence-transformers, of plain onnxruntime, and of Cotensor with each engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, List, NamedTuple, Tuple

import numpy as np

#: Every n-th text is embedded alone, too.
ALONE = 20
#: Embeds the texts with Cotensor in this process, at once and some alone.
PROGRAM = """
import json, sys, warnings
import numpy
import cotensor
warnings.simplefilter("ignore")
texts = json.loads(open(sys.argv[2]).read())
try:
    embedder = cotensor.Embedder(sys.argv[1], fallback="local")
    assert embedder.is_local
    rows = embedder.embed(texts)
    alone = numpy.stack([embedder.embed(text) for text in texts[:: int(sys.argv[4])]])
except (cotensor.UnsupportedError, cotensor.InvalidError, cotensor.NotFoundError) as error:
    print(json.dumps({"refused": str(error)}))
else:
    numpy.savez(sys.argv[3], rows=rows, alone=alone)
    print("{}")
"""


class Answer(NamedTuple):
    """The embeddings of a folder by an engine, or why it refused."""

    rows: np.ndarray
    alone: np.ndarray
    refused: str = ""


def reference(source: Path, texts_of) -> Tuple[List[str], np.ndarray]:
    """The texts, and sentence-transformers' embeddings of each text alone, in float32 on the processor."""
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(source), device="cpu", model_kwargs={"dtype": torch.float32})
    tokenizer = model.tokenizer
    texts = texts_of(model.max_seq_length, lambda text: len(tokenizer(text, truncation=False, verbose=False)["input_ids"]))
    return texts, model.encode(texts, batch_size=1, show_progress_bar=False)


def by_onnxruntime(source: Path, graph: Path, texts: List[str], options: Any = None) -> np.ndarray:
    """Plain onnxruntime on this graph, text by text, with the tokenizer and the modules of sentence-transformers. `options` are
    those of the session."""
    import onnxruntime
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(source), device="cpu")
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    inputs = {value.name for value in session.get_inputs()}
    rows = []
    with torch.no_grad():
        for text in texts:
            features = model.preprocess([text])
            given = {name: value.numpy() for name, value in features.items() if name in inputs}
            hidden = next(value for value in session.run(None, given) if value.ndim == 3)
            features["token_embeddings"] = torch.from_numpy(hidden)
            for module in list(model)[1:]:
                features = module(features)
            rows.append(features["sentence_embedding"][0].numpy())
    return np.stack(rows)


def library() -> str:
    """The library of the package onnxruntime, which plain onnxruntime uses, too."""
    import onnxruntime

    return str(next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")))


def by_cotensor(folder: Path, texts: List[str], engine: str) -> Answer:
    """Cotensor in a process of its own, without a daemon: no result of another engine can be served."""
    with tempfile.TemporaryDirectory() as scratch:
        listed, result = Path(scratch) / "texts.json", Path(scratch) / "rows.npz"
        listed.write_text(json.dumps(texts))
        settings = {
            "COTENSOR_ENGINE": engine,
            "COTENSOR_AUTOSTART": "0",
            "COTENSOR_CONFIG": "/dev/null",
            "COTENSOR_RUNTIME_DIR": f"{scratch}/run",
            "COTENSOR_CACHE": f"{scratch}/cache",
            "XDG_STATE_HOME": f"{scratch}/state",
            "HF_HUB_OFFLINE": "1",
            "ORT_DYLIB_PATH": library(),
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COTENSOR_")} | settings
        command = [sys.executable, "-c", PROGRAM, str(folder), str(listed), str(result), str(ALONE)]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
        if run.returncode:
            raise RuntimeError(f"{folder}, {engine}: {run.stderr.strip()[-2000:]}")
        refused = json.loads(run.stdout.splitlines()[-1]).get("refused", "")
        if refused:
            return Answer(np.empty(0), np.empty(0), refused)
        with np.load(result) as arrays:
            return Answer(arrays["rows"], arrays["alone"])


def difference(answer: Answer, expected: np.ndarray) -> float:
    """The largest absolute difference, of texts in a batch and alone."""
    return max(largest(answer.rows, expected), largest(answer.alone, expected[::ALONE]))


def largest(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest absolute difference. Numbers that are not finite differ infinitely."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        worst = float(np.abs(ours.astype(np.float64) - theirs).max())
    return worst if np.isfinite(worst) else float("inf")
