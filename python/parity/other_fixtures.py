"""Runs a script of fixtures with another exporter: python other_fixtures.py legacy|optimum SCRIPT [NAME ...].

`legacy` is torch's exporter that traces. `optimum` exports the whole model of a stage and takes the graph with the stage's name.
It traces stages of which it writes none, as heads without a model. Fails if optimum writes none of a script's graphs.
"""

from __future__ import annotations

import io
import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

EXPORTER, SCRIPT = sys.argv[1:3]
sys.path.insert(0, str(Path(SCRIPT).resolve().parent))

import exports  # noqa: E402
import graphs  # noqa: E402
import onnx  # noqa: E402
import torch  # noqa: E402
from stages import input_names  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

#: The task of optimum for models whose class ends so; the first match counts.
TASKS = {
    "WhisperForConditionalGeneration": "automatic-speech-recognition-with-past",
    "T5ForConditionalGeneration": "text2text-generation-with-past",
    "BartForConditionalGeneration": "text2text-generation-with-past",
    "CausalLM": "text-generation-with-past",
    "LMHeadModel": "text-generation-with-past",
    "ForImageClassification": "image-classification",
    "ForObjectDetection": "object-detection",
    "SiglipModel": "zero-shot-image-classification",
    "BertModel": "feature-extraction",
    "ViTModel": "feature-extraction",
    "DeiTModel": "feature-extraction",
}
#: Models that a script has made, each after its parts.
MADE: List[PreTrainedModel] = []
#: The folder of a model's graphs.
FOLDERS: Dict[int, Path] = {}
TAKEN: List[str] = []


def by_tracing(stage: Any) -> onnx.ModelProto:
    """As graphs.export, but the graph stays as the exporter writes it."""
    names = input_names(stage)
    axes = [axis for spec in stage.axes.values() for axis in (spec if isinstance(spec, list) else [spec])]
    written = io.BytesIO()
    torch.onnx.export(
        stage.module.eval(),
        tuple(stage.inputs.values()),
        written,
        dynamo=False,
        opset_version=17,
        input_names=names,
        output_names=stage.outputs,
        dynamic_axes={name: dict(axis) for name, axis in zip(names, axes) if axis},
    )
    return onnx.load_from_string(written.getvalue())


def by_optimum(stage: Any) -> onnx.ModelProto:
    """optimum's graph, with the outputs of the stage only."""
    part = next((module for module in stage.module.modules() if isinstance(module, PreTrainedModel)), None)
    if part is None:
        return by_tracing(stage)
    model = next(made for made in reversed(MADE) if any(module is part for module in made.modules()))
    path = exported(model) / f"{stage.graph}.onnx"
    if not path.exists():
        return by_tracing(stage)
    TAKEN.append(stage.graph)
    graph = onnx.load(path)
    given = {value.name: value for value in graph.graph.output}
    del graph.graph.output[:]
    graph.graph.output.extend(given[name] for name in stage.outputs)
    return graph


def exported(model: PreTrainedModel) -> Path:
    """The folder with optimum's graphs of the model."""
    if id(model) not in FOLDERS:
        kind = type(model).__name__
        task = next((task for end, task in TASKS.items() if kind.endswith(end)), None)
        if task is None:
            raise SystemExit(f"optimum has no graph of the stages of {kind}")
        folder = Path(tempfile.mkdtemp(dir=SCRATCH))
        model.save_pretrained(folder / "model")
        config = folder / "model" / "config.json"
        saved = json.loads(config.read_text())
        config.write_text(json.dumps({**saved, **exports.older_fields(saved)}))
        exports.run_optimum(folder / "model", folder / "graphs", "transformers", task)
        FOLDERS[id(model)] = folder / "graphs"
    return FOLDERS[id(model)]


def made(cls: Any, *arguments: Any, **options: Any) -> PreTrainedModel:
    MADE.append(FROM_CONFIG(cls, *arguments, **options))
    return MADE[-1]


FROM_CONFIG = PreTrainedModel._from_config.__func__
PreTrainedModel._from_config = classmethod(made)
graphs.export = {"legacy": by_tracing, "optimum": by_optimum}[EXPORTER]
sys.argv = sys.argv[2:]
with tempfile.TemporaryDirectory() as SCRATCH:
    runpy.run_path(SCRIPT, run_name="__main__")
if EXPORTER == "optimum" and not TAKEN:
    raise SystemExit("optimum wrote no graph of a stage")
