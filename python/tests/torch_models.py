"""Small models of several families with random weights, for tests that construct the same model in two processes."""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict, Iterator, Tuple

import torch
import transformers as t


def _text(**more: Any) -> Dict[str, Any]:
    return dict(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=40,
        **more,
    )


def _vision(**more: Any) -> Dict[str, Any]:
    return dict(
        image_size=32,
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        **more,
    )


def _llama(**more: Any) -> Any:
    sizes = {**_text(), "num_key_value_heads": 2}
    return t.LlamaConfig(**{**sizes, **more}, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def _detr() -> Any:
    backbone = t.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    return t.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=5,
        num_labels=3,
    )


def _clap() -> Any:
    return t.ClapConfig(
        text_config={**_text(), "projection_dim": 16, "pad_token_id": 1},
        audio_config=dict(
            spec_size=64,
            num_mel_bins=16,
            window_size=2,
            patch_size=4,
            patch_stride=[4, 4],
            patch_embeds_hidden_size=16,
            hidden_size=32,
            depths=[1, 1],
            num_attention_heads=[2, 2],
            num_hidden_layers=2,
            projection_dim=16,
            enable_fusion=False,
        ),
        projection_dim=16,
    )


def _llava() -> Any:
    return t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**_vision(projection_dim=16)),
        text_config=_llama(vocab_size=97),
        image_token_id=96,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )


def _whisper() -> Any:
    return t.WhisperConfig(
        vocab_size=97,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=20,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )


def _wav2vec2() -> Any:
    return t.Wav2Vec2Config(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        conv_dim=(16, 16),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
    )


def _ids(config: Any, length: int = 9) -> torch.Tensor:
    return torch.arange(3, 3 + length)[None]


def _pixels(side: int = 32) -> torch.Tensor:
    return torch.linspace(-1, 1, 3 * side * side).reshape(1, 3, side, side)


def _both(config: Any) -> Dict[str, torch.Tensor]:
    return {"input_ids": _ids(config), "attention_mask": torch.ones(1, 9, dtype=torch.long), "pixel_values": _pixels()}


#: The class, the config and an input of each family.
FAMILIES: Dict[str, Tuple[str, Callable[[], Any], Callable[[Any], Dict[str, torch.Tensor]]]] = {
    "bert": ("BertForMaskedLM", lambda: t.BertConfig(**_text()), lambda c: {"input_ids": _ids(c)}),
    "t5": (
        "T5ForConditionalGeneration",
        lambda: t.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
        lambda c: {"input_ids": _ids(c), "decoder_input_ids": _ids(c, 4)},
    ),
    "bart": (
        "BartForConditionalGeneration",
        lambda: t.BartConfig(
            vocab_size=97,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_position_embeddings=40,
        ),
        lambda c: {"input_ids": _ids(c)},
    ),
    "llama": ("LlamaForCausalLM", _llama, lambda c: {"input_ids": _ids(c)}),
    "vit": ("ViTModel", lambda: t.ViTConfig(**_vision()), lambda c: {"pixel_values": _pixels()}),
    "clip": (
        "CLIPModel",
        lambda: t.CLIPConfig(
            text_config={**_text(), "projection_dim": 16, "eos_token_id": 2},
            vision_config=_vision(projection_dim=16),
            projection_dim=16,
        ),
        _both,
    ),
    "detr": ("DetrForObjectDetection", _detr, lambda c: {"pixel_values": _pixels(64)}),
    "whisper": (
        "WhisperForConditionalGeneration",
        _whisper,
        lambda c: {
            "input_features": torch.linspace(-1, 1, 16 * 40).reshape(1, 16, 40),
            "decoder_input_ids": _ids(c, 4),
        },
    ),
    "wav2vec2": (
        "Wav2Vec2Model",
        _wav2vec2,
        lambda c: {"input_values": torch.sin(torch.arange(800) / 7)[None]},
    ),
    "clap": (
        "ClapModel",
        _clap,
        lambda c: {"input_ids": _ids(c), "input_features": torch.linspace(-1, 1, 256 * 16).reshape(1, 1, 256, 16)},
    ),
    "blip": (
        "BlipModel",
        lambda: t.BlipConfig(
            text_config={**_text(), "encoder_hidden_size": 32, "projection_dim": 16},
            vision_config=_vision(),
            projection_dim=16,
        ),
        _both,
    ),
    "llava": (
        "LlavaForConditionalGeneration",
        _llava,
        lambda c: {"input_ids": torch.cat([torch.full((1, 16), 96), _ids(c)], 1), "pixel_values": _pixels()},
    ),
}


def family(name: str) -> Tuple[Any, Any, Dict[str, torch.Tensor]]:
    """A class, its config and an input."""
    kind, make, inputs = FAMILIES[name]
    config = make()
    return getattr(t, kind), config, inputs(config)


def digest(outputs: Any) -> str:
    """The hash of all tensors in the outputs."""
    found = hashlib.sha256()
    count = 0
    for tensor in _tensors(outputs):
        plain = tensor.detach().contiguous()
        found.update(f"{plain.dtype} {list(plain.shape)}".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
        count += 1
    assert count, "no tensors in the outputs"
    return found.hexdigest()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def run(model: Any, inputs: Dict[str, torch.Tensor]) -> str:
    """The digest of a pass in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return digest(model(**inputs))
