"""Shared encoders of transformers, sentence_transformers, diffusers, peft and torch."""

from __future__ import annotations

import pytest
from conftest import local_store

torch = pytest.importorskip("torch")
nn = torch.nn

from share_common import no_gradients  # noqa: E402

import cotensor  # noqa: E402
from cotensor.torch import publish, share  # noqa: E402

transformers = pytest.importorskip("transformers")
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)


without_gradients = no_gradients()
store = local_store("module")


def _bert(**more):
    return transformers.BertModel(transformers.BertConfig(vocab_size=97, **SIZES, **more))


def _vit(**more):
    return transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **SIZES, **more))


def _clip_vision(**more):
    return transformers.CLIPVisionModel(transformers.CLIPVisionConfig(image_size=32, patch_size=8, **SIZES, **more))


def _clip_text(**more):
    sizes = dict(vocab_size=97, bos_token_id=1, eos_token_id=2, pad_token_id=0, projection_dim=16)
    return transformers.CLIPTextModel(transformers.CLIPTextConfig(**sizes, **SIZES, **more))


def _whisper(**more):
    sizes = dict(d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=64, num_mel_bins=16)
    rest = dict(decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=64, vocab_size=97, max_source_positions=20)
    tokens = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    return transformers.WhisperModel(transformers.WhisperConfig(**sizes, **rest, **tokens, **more)).encoder


def _tokens(batch=2, length=8):
    return {"input_ids": torch.arange(3, 3 + batch * length).view(batch, length), "attention_mask": _mask(batch, length)}


def _mask(batch, length):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, length - 2 :] = 0
    return mask


MODELS = {
    "bert": (_bert, _tokens, "hidden_act"),
    "vit": (_vit, lambda: {"pixel_values": torch.linspace(-1, 1, 6144).view(2, 3, 32, 32)}, "hidden_act"),
    "clip vision": (_clip_vision, lambda: {"pixel_values": torch.linspace(-1, 1, 3072).view(1, 3, 32, 32)}, "hidden_act"),
    "clip text": (_clip_text, _tokens, "hidden_act"),
    "whisper": (_whisper, lambda: {"input_features": torch.linspace(-1, 1, 640).view(1, 16, 40)}, "activation_function"),
}


def _made(make, **more):
    torch.manual_seed(3)
    return make(**more).eval()


def _assert_equal(found, expected):
    assert type(found) is type(expected) and list(found) == list(expected)
    for name in expected:
        many = [(found[name], expected[name])] if isinstance(found[name], torch.Tensor) else zip(found[name], expected[name])
        for one, other in many:
            assert torch.equal(one, other), name


@pytest.mark.parametrize("make, inputs, activation", MODELS.values(), ids=MODELS)
def test_encoders_of_transformers_are_shared(store, make, inputs, activation):
    one, same, other = _made(make), _made(make), _made(make, **{activation: "relu"})
    given = inputs()
    expected = one(**given), other(**given)
    shared = [share(module, store=store) for module in (one, same, other)]
    _assert_equal(one(**given), expected[0])
    _assert_equal(same(**given), expected[0])
    _assert_equal(other(**given), expected[1])
    assert [(one.computed, one.hits) for one in shared] == [(1, 0), (0, 1), (1, 0)]
    assert not any(one.private for one in shared)


def test_hidden_states_are_shared(store):
    model, plain = _made(_bert), _made(_bert)
    given = _tokens()
    expected = plain(**given, output_hidden_states=True)
    shared = share(model, store=store)
    for _ in range(2):
        _assert_equal(model(**given, output_hidden_states=True), expected)
    model(**given)
    model(**given)
    assert shared.computed + shared.hits == 4 and not shared.private


def test_outer_model_gets_all_hidden_states(store):
    model, plain = _made(_bert), _made(_bert)
    shared = share(model.encoder, store=store)
    given = _tokens()
    for wanted in (False, True, False):
        for _ in range(2):
            _assert_equal(model(**given, output_hidden_states=wanted), plain(**given, output_hidden_states=wanted))
    assert shared.hits >= 1 and shared.private["an outer model collects hidden states"] == 2


def test_batch_encoding_is_a_supported_argument(store):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = _made(_bert)

        def forward(self, encoding):
            return self.bert(**encoding).last_hidden_state.mean(1) + encoding.input_ids.sum()

    module = Pooled().eval()
    expected = module(transformers.BatchEncoding(_tokens()))
    shared = share(module, store=store)
    for _ in range(2):
        assert torch.equal(module(transformers.BatchEncoding(_tokens())), expected)
    assert (shared.computed, shared.hits) == (1, 1)
    with torch.inference_mode():
        assert torch.equal(module(transformers.BatchEncoding(_tokens())), expected)


def test_published_and_loaded_models_share():
    store = cotensor.Store()
    loaded, published = _made(_bert), _made(_bert)
    publish(published, "bert-of-this-test", store)
    bytes_before = store.get_stats()["memory_usage_bytes"]
    one = share(published, store=store)
    assert store.get_stats()["memory_usage_bytes"] == bytes_before, "weights in shared memory are not copied"
    other = share(loaded, store=store)
    published(**_tokens())
    loaded(**_tokens())
    assert (one.computed, other.hits) == (1, 1) and one.spaces == other.spaces
    with torch.no_grad():
        published.embeddings.word_embeddings.weight.data[5] += 1
    published(**_tokens())
    assert one.hits == 1
    one.refresh()
    published(**_tokens())
    assert one.computed == 2, "a row written in place gives another space"


def test_sentence_transformers_are_shared(store, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    _made(_bert).save_pretrained(tmp_path / "bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(97 + number) for number in range(26))]
    (tmp_path / "vocabulary.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(tmp_path / "vocabulary.txt")).save_pretrained(tmp_path / "bert")
    model = library.SentenceTransformer(str(tmp_path / "bert"), device="cpu").eval()
    sentences = ["a b c", "d e"]
    expected = model.encode(sentences)
    shared = share(model, store=store)
    for _ in range(2):
        assert (model.encode(sentences) == expected).all()
    assert (shared.computed, shared.hits) == (1, 1), dict(shared.private)


def test_models_of_diffusers_are_shared(store):
    diffusers = pytest.importorskip("diffusers")

    def unet():
        torch.manual_seed(5)
        return diffusers.UNet2DConditionModel(
            block_out_channels=(32, 64),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=32,
        ).eval()

    one, same = unet(), unet()
    given = torch.randn(2, 4, 8, 8), 3, torch.randn(2, 5, 32)
    expected = one(*given)
    first, second = share(one, store=store), share(same, store=store)
    for model in (one, same):
        output = model(*given)
        assert type(output) is type(expected) and torch.equal(output.sample, expected.sample)
    assert (first.computed, second.computed, second.hits) == (1, 0, 1), (first, second)


def test_model_with_adapters_is_shared(store):
    peft = pytest.importorskip("peft")
    wanted = peft.LoraConfig(target_modules=["query", "value"], r=2, init_lora_weights=False)

    def make(seed):
        model = _made(_bert)
        torch.manual_seed(seed)
        return peft.get_peft_model(model, wanted).eval()

    one, same, other = make(1), make(1), make(2)
    expected = one(**_tokens()), other(**_tokens())
    shared = [share(module, store=store) for module in (one, same, other)]
    _assert_equal(one(**_tokens()), expected[0])
    _assert_equal(same(**_tokens()), expected[0])
    _assert_equal(other(**_tokens()), expected[1])
    assert [(one.computed, one.hits) for one in shared] == [(1, 0), (0, 1), (1, 0)]
    with one.disable_adapter():
        one(**_tokens())


def test_encoder_layers_of_torch_are_shared(store):
    def make():
        torch.manual_seed(3)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        return nn.TransformerEncoder(layer, 2).eval()

    one, same = make(), make()
    x = torch.randn(2, 5, 16)
    expected = one(x)
    shared = share(one, store=store), share(same, store=store)
    torch.testing.assert_close(one(x), expected)
    assert torch.equal(one(x), same(x))
    assert (shared[0].computed, shared[1].hits) == (1, 1)
