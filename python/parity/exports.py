"""Graphs of a model folder as exporters write them, and their variants of fewer bits."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

#: Files that a graph's folder does not share with the source.
WEIGHTS = {".safetensors", ".bin"}
GRAPHS = {"onnx", "openvino"}
#: The graph's file of each variant.
VARIANT_FILES = {"fp32": "model", "fp16": "model_fp16", "int8": "model_quantized", "q4": "model_q4"}


def folder_of(source: Path, target: Path) -> Path:
    """A model folder with the source's files but its weights, and an empty folder for graphs."""

    def ignored(folder: str, names: List[str]) -> List[str]:
        # The weights of modules lie in folders of their own.
        return [name for name in names if Path(name).suffix in WEIGHTS or name in GRAPHS] if Path(folder) == source else []

    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=ignored, copy_function=shutil.copyfile)
    (target / "onnx").mkdir()
    return target


def by_torch(source: Path, target: Path, dynamo: bool) -> None:
    """An export of torch with the output last_hidden_state: by the current exporter or the one before, which traces."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(source, dtype=torch.float32).eval()
    model.config.use_cache = False
    known = set(AutoTokenizer.from_pretrained(source).model_input_names)
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in known]

    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            return self.model(**dict(zip(names, values))).last_hidden_state

    ids = torch.randint(5, 50, (2, 9))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    axes = {0: "batch", 1: "sequence"}
    options = {"dynamic_axes": {name: axes for name in [*names, "last_hidden_state"]}, "opset_version": 17}
    if dynamo:
        options = {"dynamic_shapes": (tuple({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for _ in names),)}
    path = folder_of(source, target) / "onnx" / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(
            Graph().eval(),
            tuple(given[name] for name in names),
            str(path),
            input_names=names,
            output_names=["last_hidden_state"],
            dynamo=dynamo,
            verbose=False,
            **options,
        )


#: Runs in optimum's environment, whose transformers is older. diffusers, which is optional, belongs to the newer one.
OPTIMUM = """
import sys
sys.modules["diffusers"] = None
from optimum.exporters.onnx import main_export
source, target, library, task = sys.argv[1:]
main_export(source, target, task=task, library_name=library, do_validation=False, no_post_process=True)
"""


def run_optimum(source: Path, target: Path, library: str, task: str = "feature-extraction") -> None:
    """Exports the model in `source` to graphs in the folder `target`."""
    python = os.environ["COTENSOR_PARITY_OPTIMUM"]
    run = subprocess.run(
        [python, "-W", "ignore", "-c", OPTIMUM, str(source), str(target), library, task],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        timeout=600,
    )
    if run.returncode:
        raise RuntimeError(error_of(run.stderr))


def older_fields(config: Dict[str, Any]) -> Dict[str, Any]:
    """Fields of config.json that transformers 5 drops, which optimum reads and which published files have."""
    theta = (config.get("rope_parameters") or {}).get("rope_theta")
    return {"rope_theta": theta} if theta else {}


def by_optimum(source: Path, target: Path, library: str) -> None:
    """An export of optimum: `last_hidden_state` with the library transformers, `token_embeddings` and `sentence_embedding` with
    sentence_transformers."""
    made = target.with_name(target.name + ".made")
    run_optimum(source, made, library)
    folder_of(source, target)
    for path in made.glob("*.onnx*"):
        path.rename(target / "onnx" / path.name)
    shutil.rmtree(made)


def error_of(printed: str) -> str:
    """The line with the error that a Python program printed."""
    lines = [line for line in printed.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (named or lines or ["no message"])[-1][:300]


def left_padded(source: Path, target: Path) -> None:
    """The graph of `source` with tokenizer files that pad on the left."""
    import json

    shutil.copytree(source, target, copy_function=os.link)
    for name, edit in {
        "tokenizer_config.json": lambda given: given | {"padding_side": "left"},
        "tokenizer.json": lambda given: given | {"padding": padding(given)},
    }.items():
        edited = json.dumps(edit(json.loads((target / name).read_text())), ensure_ascii=False)
        # Not into the file of the source, to which this name is a link.
        (target / name).unlink()
        (target / name).write_text(edited)


def padding(tokenizer: Dict) -> Dict:
    """The section `padding` of a tokenizer.json, with its own padding token."""
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    token = next(name for name in ("[PAD]", "<pad>", "</s>") if name in ids)
    given = tokenizer.get("padding") or {"strategy": "BatchLongest", "pad_to_multiple_of": None, "pad_type_id": 0}
    return given | {"direction": "Left", "pad_id": ids[token], "pad_token": token}


LAYOUTS: Dict[str, Callable[[Path, Path], None]] = {
    "dynamo": lambda source, target: by_torch(source, target, True),
    "legacy": lambda source, target: by_torch(source, target, False),
    "optimum": lambda source, target: by_optimum(source, target, "transformers"),
    "optimum, sentence_embedding": lambda source, target: by_optimum(source, target, "sentence_transformers"),
}


def variant(graph: Path, target: Path, name: str) -> Path:
    """Writes the variant of this graph into the folder `target`."""
    import onnx

    logging.disable(logging.WARNING)
    path = target / "onnx" / f"{VARIANT_FILES[name]}.onnx"
    if name == "fp16":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(graph), keep_io_types=True), path)
    elif name == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(graph, path, weight_type=QuantType.QInt8)
    else:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(onnx.load(graph), block_size=32, is_symmetric=True)
        quantizer.process()
        onnx.save(quantizer.model.model, path)
    return path


if __name__ == "__main__":
    # One export of a process: exporters keep what they traced.
    LAYOUTS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
