"""Rows of the table: the layouts and variants of a model, each with every engine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import answers
import exports
import texts

ENGINES = ("rten", "ort", "ort-shared")
#: The layout whose graph the variants and the left-padded tokenizer have.
BASE = "legacy"
LEFT = "legacy, tokenizer pads left"
#: The layouts of a model whose architecture an earlier model has.
FEW = (BASE, "optimum, sentence_embedding")
VARIANTS = ("fp16", "int8", "q4")
#: The largest difference of float32.
BOUND = 1e-5


@dataclass
class Row:
    """What an engine makes of a graph.

    `difference` is to the reference. For graphs of fewer bits, `graph_difference` is to plain onnxruntime on the same graph, text
    by text, and `graph_error` is the difference of plain onnxruntime to the reference."""

    model: str
    sizes: str
    layout: str
    variant: str
    engine: str
    difference: Optional[float] = None
    graph_difference: Optional[float] = None
    graph_error: Optional[float] = None
    refused: str = ""
    failed: str = ""

    def passes(self) -> bool:
        if self.failed:
            return False
        return bool(self.refused) or self.variant != "fp32" or (self.difference is not None and self.difference <= BOUND)


def of_source(
    name: str, sizes: str, source: Path, work: Path, few: bool = False, engines: Sequence[str] = ENGINES
) -> Iterator[Row]:
    """All rows of the model in `source`. Folders of graphs are made below `work` and removed."""
    listed, expected = answers.reference(source, texts.texts)
    refused_everywhere = False
    for layout, make in layouts(source, work, FEW if few else tuple(exports.LAYOUTS)):
        try:
            folder = make()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            yield Row(name, sizes, layout, "fp32", "all", refused=f"not exported: {error}")
            continue
        rows = [measured(Row(name, sizes, layout, "fp32", engine), folder, listed, expected) for engine in engines]
        yield from rows
        if layout == BASE:
            refused_everywhere = all(row.refused for row in rows)
        if layout == BASE and not few and not refused_everywhere:
            yield from of_variants(name, sizes, source, folder, listed, expected, engines)
            exports.left_padded(folder, left := work / "left")
            for engine in engines:
                yield measured(Row(name, sizes, LEFT, "fp32", engine), left, listed, expected)
            shutil.rmtree(left)
        shutil.rmtree(folder)


def layouts(source: Path, work: Path, names: Sequence[str]) -> Iterator[Tuple[str, Callable[[], Path]]]:
    for name in names:
        target = work / name.replace(", ", "-")

        def make(name: str = name, target: Path = target) -> Path:
            command = [sys.executable, "-W", "ignore", exports.__file__, name, str(source), str(target)]
            run = subprocess.run(command, capture_output=True, text=True, timeout=900)
            if run.returncode:
                raise RuntimeError(exports.error_of(run.stderr).removeprefix("RuntimeError: "))
            return target

        yield name, make


def of_variants(
    name: str, sizes: str, source: Path, folder: Path, listed: List[str], expected: Any, engines: Sequence[str]
) -> Iterator[Row]:
    for variant in VARIANTS:
        target = exports.folder_of(source, folder.with_name(variant))
        graph = exports.variant(folder / "onnx" / "model.onnx", target, variant)
        plain = answers.by_onnxruntime(source, graph, listed)
        for engine in engines:
            row = Row(name, sizes, BASE, variant, engine, graph_error=answers.largest(plain, expected))
            yield measured(row, target, listed, expected, plain)
        shutil.rmtree(target)


def measured(row: Row, folder: Path, listed: List[str], expected: Any, plain: Any = None) -> Row:
    try:
        answer = answers.by_cotensor(folder, listed, row.engine)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        row.failed = str(error)
        return row
    row.refused = answer.refused.replace(f"{folder.absolute()}/", "")
    if not answer.refused:
        row.difference = answers.difference(answer, expected)
        if plain is not None:
            row.graph_difference = answers.difference(answer, plain)
    print(row, flush=True, file=sys.stderr)
    return row


def as_json(rows: Sequence[Row]) -> List[Dict[str, Any]]:
    return [asdict(row) for row in rows]
