"""Exports an encoder of texts to FOLDER/onnx/model.onnx: model types that optimum's exporter does not know.

    pip install transformers torch onnx onnxscript
    python export_encoder.py FOLDER

FOLDER has the files of the model as the hub has them. The graph gives last_hidden_state; pooling and modules stay in their
files. Code of the model (auto_map in config.json) runs only with --trust-remote-code: read it first.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModel

INPUTS = ["input_ids", "attention_mask"]


class Encoder(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trust-remote-code", action="store_true")
    given = parser.parse_args()
    options = {"attn_implementation": "eager", "dtype": torch.float32, "trust_remote_code": given.trust_remote_code}
    model = Encoder(AutoModel.from_pretrained(given.folder, **options)).eval()
    ids = torch.ones(2, 9, dtype=torch.int64)
    values = (ids, torch.ones_like(ids))
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    path = given.folder / "onnx/model.onnx"
    path.parent.mkdir(exist_ok=True)
    torch.onnx.export(
        model,
        values,
        path,
        dynamo=True,
        dynamic_shapes=(axes, axes),
        input_names=INPUTS,
        output_names=["last_hidden_state"],
    )
    print(path)


if __name__ == "__main__":
    main()
