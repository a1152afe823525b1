"""A decoder with the architecture and size of SmolLM2-135M, seeded random weights, and the byte-level tokenizer of RoBERTa."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
sys.path.append(str(FIXTURES / "scripts"))

HEADS, KEY_HEADS, WIDTH, POSITIONS, VOCABULARY = 9, 3, 64, 8192, 50265


def make_llama(folder: Path, layers: int = 30) -> Path:
    """Makes the folder: onnx/model.onnx, which reads and returns the cache of keys and values, and the tokenizer."""
    import onnx
    import torch
    from decoders import causal_stage
    from graphs import export
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HEADS * WIDTH,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
    (folder / "onnx").mkdir(parents=True)
    with torch.no_grad():
        graph = export(causal_stage(model, KEY_HEADS, WIDTH))
    onnx.save(graph, folder / "onnx" / "model.onnx", save_as_external_data=True, location="model.data")
    config.save_pretrained(folder)
    tokenizer = json.loads(gzip.decompress((FIXTURES / "skeletons" / "roberta-base" / "tokenizer.json.gz").read_bytes()))
    # A prompt is continued, so that nothing comes after it.
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": POSITIONS, **names}))
    return folder
