"""A model of embeddings with the architecture and size of all-MiniLM-L6-v2 and seeded random weights."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Optional

SKELETON = Path(__file__).resolve().parents[2] / "fixtures" / "skeletons" / "bert-base"


def given_or_made(model: Optional[Path], folder: Path) -> Path:
    """The folder that a program was given, or a new one in ``folder``."""
    return (model or make_model(folder / "model")).absolute()


def make_model(folder: Path, positions: int = 512, width: int = 384, layers: int = 6, heads: int = 12) -> Path:
    """Makes the folder: onnx/model.onnx, the tokenizer, and torch/ for sentence-transformers.

    A text has at most `positions` tokens."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=positions,
        attn_implementation="eager",
    )
    bert = BertModel(config, add_pooling_layer=False).eval()
    (folder / "onnx").mkdir(parents=True)
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_bytes(gzip.decompress((SKELETON / "tokenizer.json.gz").read_bytes()))
    settings = json.loads((SKELETON / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": positions}))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    config.save_pretrained(folder)

    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.bert(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
            return output

    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = torch.ones(2, 7, dtype=torch.long)
    torch.onnx.export(
        Graph(),
        (example, example, example),
        str(folder / "onnx" / "model.onnx"),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch", 1: "sequence"} for name in [*names, "last_hidden_state"]},
        opset_version=18,
        dynamo=False,
    )
    source = folder / "source"
    bert.save_pretrained(source)
    PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), pad_token="[PAD]", unk_token="[UNK]").save_pretrained(source)
    words = Transformer(str(source), max_seq_length=256)
    SentenceTransformer(modules=[words, Pooling(width), Normalize()]).save(str(folder / "torch"))
    return folder
