"""The tables of docs/explanation/parity.md from the rows."""

from __future__ import annotations

import itertools
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Dict, List, Tuple

from rows import BOUND, ENGINES, Row

#: The tables replace what follows this line of the document.
MARK = "<!-- The rest is written by `make parity`. -->\n"
PACKAGES = ("torch", "transformers", "sentence-transformers", "onnx", "onnxruntime", "tokenizers")


def write(path: Path, found: List[Row], families: List[Dict]) -> None:
    text, mark, _ = path.read_text().partition(MARK)
    if not mark:
        raise SystemExit(f"{path}: the line {MARK.strip()!r} is missing")
    path.write_text(text + MARK + "\n" + tables(found, families))


def tables(found: List[Row], families: List[Dict]) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    parts = [
        f"Measured on {platform.machine()} with {versions}.",
        "## Exports of float32",
        f"The largest absolute difference to sentence-transformers; at most {BOUND:.0e}, or refused.",
        of_layouts(found),
        "## Fewer bits",
        "Of the graph that the legacy exporter wrote. *Graph*: plain onnxruntime on the quantized graph, text by text, to "
        "sentence-transformers in float32, which is what the fewer bits cost. The columns of engines: the largest difference to "
        "plain onnxruntime on the same graph, and in parentheses to sentence-transformers.",
        of_variants(found),
        "## Refused, and not exported",
        of_refusals(found),
        of_families(families),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def number(value) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.1e}".replace("e-0", "e-")


def cell(row: Row) -> str:
    if row.failed:
        return "failed"
    if row.refused:
        return "refused"
    shown = number(row.difference) if row.variant == "fp32" else f"{number(row.graph_difference)} ({number(row.difference)})"
    return shown if row.passes() else f"**{shown}**"


def grid(heads: List[str], lines: List[List[str]]) -> str:
    shown = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in shown)


def grouped(found: List[Row], key) -> Dict[Tuple, List[Row]]:
    """Rows of one line of a table, in the order of their first."""
    groups: Dict[Tuple, List[Row]] = {}
    for row in found:
        groups.setdefault(key(row), []).append(row)
    return groups


def of_layouts(found: List[Row]) -> str:
    chosen = [row for row in found if row.variant == "fp32" and row.engine in ENGINES]
    lines = []
    for (model, sizes, layout), rows in grouped(chosen, lambda row: (row.model, row.sizes, row.layout)).items():
        by_engine = {row.engine: cell(row) for row in rows}
        lines.append([model, sizes, layout, *(by_engine.get(engine, "") for engine in ENGINES)])
    return grid(["model", "size", "layout", *ENGINES], merged(lines, 2))


def of_variants(found: List[Row]) -> str:
    lines = []
    chosen = [row for row in found if row.variant != "fp32"]
    for (model, variant), rows in grouped(chosen, lambda row: (row.model, row.variant)).items():
        by_engine = {row.engine: cell(row) for row in rows}
        lines.append([model, variant, number(rows[0].graph_error), *(by_engine.get(engine, "") for engine in ENGINES)])
    return grid(["model", "variant", "graph", *ENGINES], merged(lines, 1))


def merged(lines: List[List[str]], columns: int) -> List[List[str]]:
    """Without the first columns of lines in which they are those of the line before."""
    shown = lines[:1]
    for before, line in itertools.pairwise(lines):
        same = before[:columns] == line[:columns]
        shown.append([""] * columns + line[columns:] if same else line)
    return shown


def of_families(families: List[Dict]) -> str:
    if not families:
        return ""
    shown = sorted((row for row in families if not row.get("error")), key=lambda row: row["family"])
    lines = [[row["family"], row["exporter"], *(number(row.get(engine)) or "not run" for engine in ENGINES)] for row in shown]
    text = (
        "fixtures/tiny and fixtures/sounds: random weights, a few layers, all stages (encoders, decoders with and without past, "
        "heads). The largest difference to transformers, in standard deviations of the output; at most 1e-4. *dynamo* is the "
        "committed fixture, *legacy* the same model exported by torch's exporter that traces, *optimum* by optimum where it has "
        "a graph of that name. rten refuses cubic Resize (DINOv2; CLAP where it resizes)."
    )
    parts = [f"## Families\n\n{text}", grid(["family", "exporter", *ENGINES], merged(lines, 1))]
    missing = [[row["family"], row["exporter"], row["error"].replace("|", "\\|")] for row in families if row.get("error")]
    if missing:
        parts.append(grid(["family", "exporter", "not exported"], missing))
    return "\n\n".join(parts)


def of_refusals(found: List[Row]) -> str:
    reasons = grouped([row for row in found if row.refused or row.failed], lambda row: (row.model, row.refused or row.failed))
    lines = []
    for (model, reason), rows in reasons.items():
        where = sorted({row.layout if row.variant == "fp32" else f"{row.layout} {row.variant}" for row in rows})
        engines = sorted({row.engine for row in rows})
        shown = "all" if set(engines) >= set(ENGINES) or engines == ["all"] else ", ".join(engines)
        lines.append([model, "; ".join(where), shown, reason.replace("|", "\\|").replace("\n", " ")[:240]])
    return grid(["model", "layout", "engines", "message"], lines) if lines else ""
