"""Model folders as sentence-transformers saves them: seeded weights of published configurations, or a checkpoint of a package."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any, Dict

from exports import older_fields
from models import Model

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
sys.path.append(str(FIXTURES / "scripts"))

#: The words that special tokens of the tokenizers of fixtures have in tokenizer_config.json.
BERT_NAMES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
ROBERTA_NAMES = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}


def skeleton(name: str) -> Dict[str, Any]:
    return json.loads(gzip.decompress((FIXTURES / "skeletons" / name / "tokenizer.json.gz").read_bytes()))


def template(begin: str, end: str, ids: Dict[str, int]) -> Dict[str, Any]:
    """The post-processor that puts `begin` (or nothing) before a text and `end` after it."""

    def sequence(name: str) -> Dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    def token(name: str) -> Dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    before, after = [token(begin)] * bool(begin), [token(end)]
    used = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in {begin, end} - {""}}
    single = [*before, sequence("A"), *after]
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, sequence("B"), *after], "special_tokens": used}


def sentencepiece() -> Dict[str, Any]:
    """A unigram model with the special tokens of XLM-RoBERTa, from T5's."""
    tokenizer = skeleton("t5-base")
    head = ["<s>", "<pad>", "</s>", "<unk>"]
    vocab = [[token, 0.0] for token in head] + tokenizer["model"]["vocab"][3:] + [["<mask>", 0.0]]
    tokenizer["model"].update(vocab=vocab, unk_id=3)
    ids = {token: at for at, token in enumerate(head)} | {"<mask>": len(vocab) - 1}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] = [{"id": at, "content": token, **plain} for token, at in ids.items()]
    tokenizer["post_processor"] = template("<s>", "</s>", ids)
    return tokenizer


def last_token() -> Dict[str, Any]:
    """A byte-level BPE that adds an end token only, as Qwen3-Embedding; its padding is the end token."""
    tokenizer = skeleton("roberta-base")
    tokenizer["post_processor"] = template("", "</s>", {"</s>": 2})
    return tokenizer


TOKENIZERS = {
    "wordpiece": (lambda: skeleton("bert-base"), BERT_NAMES),
    "byte-level": (lambda: skeleton("roberta-base"), ROBERTA_NAMES),
    "sentencepiece": (sentencepiece, ROBERTA_NAMES),
    "last-token": (last_token, {"pad_token": "</s>", "unk_token": "<unk>", "eos_token": "</s>", "padding_side": "left"}),
}


def write_tokenizer(folder: Path, model: Model) -> int:
    """Writes the files of the tokenizer; returns the size of its vocabulary."""
    make, names = TOKENIZERS[model.tokenizer]
    tokenizer = make()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.limit, **names}
    settings["model_input_names"] = [name for name in ("input_ids", "token_type_ids", "attention_mask") if name in model.inputs]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return 1 + max([token["id"] for token in tokenizer["added_tokens"]] + [len(tokenizer["model"]["vocab"]) - 1])


def make_source(folder: Path, model: Model, seed: int) -> Path:
    """The folder of the model with its weights and the files of sentence-transformers, in the form of published repositories."""
    import torch
    import transformers
    from tiny import randomize

    folder.mkdir(parents=True)
    vocabulary = write_tokenizer(folder, model)
    settings = {**model.settings, "vocab_size": vocabulary}
    settings[model.layers_field] = model.layers or settings[model.layers_field]
    config = getattr(transformers, f"{model.kind}Config")(**settings)
    torch.manual_seed(seed)
    made = getattr(transformers, f"{model.kind}Model")(config)
    randomize(made, seed)
    made.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**saved, **older_fields(saved)}, indent=2))
    write_modules(folder, model, settings.get("hidden_size") or settings["dim"], seed)
    return folder


def write_modules(folder: Path, model: Model, width: int, seed: int) -> None:
    kinds = ["Transformer", "Pooling", *["Dense"] * len(model.dense), *["Normalize"] * model.normalizes]
    paths = [f"{at}_{kind}" if at else "" for at, kind in enumerate(kinds)]
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(zip(paths, kinds))
    ]
    flags = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}
    pooling = {f"pooling_mode_{flag}": mode == model.pooling for mode, flag in flags.items()}
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": width, **pooling},
        "sentence_bert_config.json": {"max_seq_length": model.limit, "do_lower_case": model.lowercases},
    }
    if model.prompts:
        files["config_sentence_transformers.json"] = {"prompts": model.prompts, "default_prompt_name": None}
    for path in paths:
        (folder / path).mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2))
    for at, (before, after) in enumerate(zip((width, *model.dense), model.dense), 2):
        write_dense(folder / paths[at], before, after, seed + at)


def write_dense(folder: Path, before: int, after: int, seed: int) -> None:
    import torch
    from safetensors.torch import save_file
    from tiny import randomize

    layer = torch.nn.Linear(before, after, bias=False)
    randomize(layer, seed)
    save_file({"linear.weight": layer.weight.data}, folder / "model.safetensors")
    named = {"in_features": before, "out_features": after, "bias": False}
    named["activation_function"] = "torch.nn.modules.linear.Identity"
    (folder / "config.json").write_text(json.dumps(named))
