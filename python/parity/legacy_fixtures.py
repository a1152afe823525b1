"""Runs a script of fixtures with torch's exporter that traces, in place of the current one: python legacy_fixtures.py SCRIPT."""

from __future__ import annotations

import io
import runpy
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(sys.argv[1]).resolve().parent))

import graphs  # noqa: E402
import onnx  # noqa: E402
import torch  # noqa: E402
from stages import input_names  # noqa: E402


def export(stage: Any) -> onnx.ModelProto:
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


graphs.export = export
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
