"""Models for the figures: the architecture and size of published models, with seeded random weights.

Nothing is downloaded. The folder of a real model can be passed in place of each size.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
#: The values of `--model` for models of embeddings.
EMBEDDING_MODELS = "bert-base (437 MB), tiny, or a folder with onnx/model.onnx and tokenizer.json"
#: The values of `--model` for models of transformers.
TORCH_MODELS = "base, small, or a folder of transformers"

#: The sizes of a BERT, as arguments of its configuration.
_ENCODERS = {
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "medium": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 2048},
    "base": {},
}


def embedding_model(name: str, folder: Path) -> Path:
    """The folder of an ONNX model of embeddings: `tiny` and `bert-base` are made in `folder`."""
    if name == "tiny":
        return FIXTURES / "tiny" / "bert"
    if name != "bert-base":
        return _given(name, "onnx/model.onnx")
    return skeleton(name, folder)


def skeleton(name: str, folder: Path) -> Path:
    """Makes the model of `fixtures/skeletons` with this name in `folder`, with seeded random weights."""
    import numpy as np

    source, made = FIXTURES / "skeletons" / name, folder / name
    for file in filter(Path.is_file, source.rglob("*")):
        target = made / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".gz":
            target.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        else:
            shutil.copy(file, target)
    random = np.random.default_rng(0)
    for graph in json.loads((made / "seed.json").read_text())["graphs"].values():
        data = np.memmap(made / "onnx" / graph["data"], np.float32, "w+", shape=(graph["data_bytes"] // 4,))
        for tensor in graph["tensors"]:
            begin, count = tensor["offset"] // 4, tensor["length"] // 4
            init = tensor["init"]
            if init["kind"] == "constant":
                data[begin : begin + count] = init["value"]
            else:
                # Sinusoids of positions, too, are numbers of this size.
                data[begin : begin + count] = random.standard_normal(count, np.float32) * np.float32(init.get("std", 0.5))
        data.flush()
    return made


def encoder(name: str, folder: Path) -> Path:
    """The folder of a BERT of transformers, in float32, with a tokenizer: those of `_ENCODERS` are made in `folder`."""
    if name not in _ENCODERS:
        return _given(name, "config.json")
    from transformers import BertConfig, BertModel

    return _made(BertModel, BertConfig(**_ENCODERS[name]), folder / name)


def causal_model(name: str, folder: Path) -> Path:
    """The folder of a Llama of transformers, in bfloat16 as most are published, with a tokenizer."""
    if name not in ("small", "base"):
        return _given(name, "config.json")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers = (256, 4) if name == "small" else (768, 12)
    config = LlamaConfig(
        vocab_size=30522,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=width * 4,
        tie_word_embeddings=True,
        dtype=torch.bfloat16,
    )
    return _made(LlamaForCausalLM, config, folder / name)


def size_of(folder: Path) -> int:
    """The size of the weights' files, in MB."""
    return round(sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6)


def _made(kind: Any, config: Any, folder: Path) -> Path:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    kind._from_config(config).save_pretrained(folder)
    source = FIXTURES / "skeletons" / "bert-base"
    shutil.copy(source / "tokenizer_config.json", folder)
    (folder / "tokenizer.json").write_bytes(gzip.decompress((source / "tokenizer.json.gz").read_bytes()))
    return folder


def _given(name: str, file: str) -> Path:
    folder = Path(name).absolute()
    if not (folder / file).is_file():
        raise SystemExit(f"--model {name}: {folder / file} does not exist; pass the folder of a model, or a size (--help)")
    return folder
