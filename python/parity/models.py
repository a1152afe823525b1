"""The models of the parity table: published configurations with seeded random weights. Data, not code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Tuple, Union


@dataclass(frozen=True)
class Model:
    """One row of the table. `settings` are the fields of the published config.json."""

    name: str
    #: The prefix of transformers' classes: BertConfig, BertModel.
    kind: str
    settings: Dict[str, Any]
    tokenizer: str
    pooling: str
    normalizes: bool
    #: The most tokens of a text in sentence_bert_config.json.
    limit: int
    #: The layers that are computed, if they are fewer than the published ones.
    layers: Union[int, None] = None
    lowercases: bool = False
    prompts: Dict[str, str] = field(default_factory=dict)
    #: The widths that the Dense modules between pooling and normalization give.
    dense: Tuple[int, ...] = ()
    #: The inputs of the graph.
    inputs: Tuple[str, ...] = ("input_ids", "attention_mask")
    #: Whether another model has this architecture or one that differs in numbers only, so that two layouts of float32 suffice.
    repeats: bool = False

    @property
    def layers_field(self) -> str:
        return "n_layers" if self.kind == "DistilBert" else "num_hidden_layers"

    def sizes(self) -> str:
        published = self.settings[self.layers_field]
        run = self.layers or published
        layers = f"{published} layers" if run == published else f"{run} of {published} layers"
        return f"{self.settings.get('hidden_size') or self.settings['dim']} wide, {layers}"


def bert(width: int, layers: int, heads: int, **more: Any) -> Dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        **more,
    }


def roberta(width: int, layers: int, heads: int, **more: Any) -> Dict[str, Any]:
    own = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0}
    return {**bert(width, layers, heads), **own, "eos_token_id": 2, **more}


TYPES = ("input_ids", "attention_mask", "token_type_ids")
E5 = {"query": "query: ", "document": "passage: "}
GEMMA: Dict[str, Any] = {
    "prompts": {"query": "task: search result | query: ", "document": "title: none | text: "},
    "dense": (3072, 768),
}
ARCTIC = {"query": "Represent this sentence for searching relevant passages: "}

MODERNBERT = {
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "cls_token_id": 0,
    "eos_token_id": 2,
    "sep_token_id": 2,
}
QWEN3 = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "pad_token_id": 2,
    "eos_token_id": 2,
    "bos_token_id": 2,
}
NOMIC = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}
# In the form of transformers: the published scaling of positions is in the base of the angles.
GTE = {
    **bert(768, 12, 12, max_position_embeddings=8192, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2),
    "rope_parameters": {"rope_type": "default", "rope_theta": 160000.0},
}
EUROBERT = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 250000.0},
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "mask_token_id": 3,
}
# Both kinds of its layers; the published model has a full one after five with a window.
EMBEDDING_GEMMA = {
    "hidden_size": 768,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "intermediate_size": 1152,
    "max_position_embeddings": 2048,
    "sliding_window": 512,
    "layer_types": ["sliding_attention", "full_attention"],
    "use_bidirectional_attention": True,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
LONG_ROBERTA = roberta(1024, 24, 16, max_position_embeddings=8194)
DISTILBERT = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "max_position_embeddings": 512}
MPNET = roberta(768, 12, 12, relative_attention_num_buckets=32)
MPNET.pop("type_vocab_size")


def bert_model(name: str, settings: Dict[str, Any], pooling: str, **more: Any) -> Model:
    usual: Dict[str, Any] = {"tokenizer": "wordpiece", "normalizes": True, "limit": 512, "repeats": True}
    return Model(name, "Bert", settings, pooling=pooling, inputs=TYPES, **{**usual, **more})


MODELS: List[Model] = [
    bert_model("all-MiniLM-L6-v2", bert(384, 6, 12), "mean", limit=256, repeats=False),
    bert_model("bge-small-en-v1.5", bert(384, 12, 12), "cls", lowercases=True),
    bert_model("bge-base-en-v1.5", bert(768, 12, 12), "cls", layers=2),
    bert_model("bge-large-en-v1.5", bert(1024, 24, 16), "cls", layers=2),
    bert_model("e5-base-v2", bert(768, 12, 12), "mean", layers=2, prompts=E5),
    bert_model("gte-base", bert(768, 12, 12), "mean", layers=2),
    bert_model("snowflake-arctic-embed-m", bert(768, 12, 12), "cls", layers=2, prompts=ARCTIC),
    bert_model("mxbai-embed-large-v1", bert(1024, 24, 16), "cls", normalizes=False, layers=2),
    bert_model("multilingual-e5-small", bert(384, 12, 12), "mean", tokenizer="sentencepiece", prompts=E5),
    Model("multilingual-e5-base", "XLMRoberta", roberta(768, 12, 12), "sentencepiece", "mean", True, 512, layers=2, prompts=E5),
    Model("bge-m3", "XLMRoberta", LONG_ROBERTA, "sentencepiece", "cls", True, 768, layers=2, repeats=True),
    Model("all-mpnet-base-v2", "MPNet", MPNET, "wordpiece", "mean", True, 384, layers=2),
    Model("multi-qa-distilbert-cos-v1", "DistilBert", DISTILBERT, "wordpiece", "mean", True, 512, layers=2),
    Model("all-distilroberta-v1", "Roberta", roberta(768, 6, 12), "byte-level", "mean", True, 512, layers=2, repeats=True),
    Model("gte-modernbert-base", "ModernBert", MODERNBERT, "byte-level", "cls", False, 768, layers=4),
    Model("nomic-embed-text-v1.5", "NomicBert", NOMIC, "wordpiece", "mean", False, 768, layers=2, inputs=TYPES),
    Model("gte-multilingual-base", "Gte", GTE, "sentencepiece", "cls", True, 768, layers=2),
    Model("EuroBERT-210m", "EuroBert", EUROBERT, "byte-level", "mean", False, 768, layers=2),
    Model("embeddinggemma-300m", "Gemma3Text", EMBEDDING_GEMMA, "sentencepiece", "mean", True, 768, layers=2, **GEMMA),
    Model("Qwen3-Embedding-0.6B", "Qwen3", QWEN3, "last-token", "lasttoken", True, 768, layers=2),
    Model("jina-embeddings-v3", "JinaEmbeddingsV3", LONG_ROBERTA, "sentencepiece", "mean", True, 768, layers=2),
]
