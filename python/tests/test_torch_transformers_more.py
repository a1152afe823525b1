"""Blocks of shared_weights with adapters, several models, heads, pipelines and models from configurations."""

from __future__ import annotations

import asyncio
import threading
import warnings
from pathlib import Path
from typing import Any, List

import pytest
from conftest import local_store

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch_models import digest, family, run  # noqa: E402

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402

store = local_store()


def assert_published(module: Any, store: cotensor.Store, name: str, prefix: str = "") -> None:
    """Asserts that every tensor of the module equals the published one."""
    published = ct.state_dict(name, store)
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, published[prefix + key]), key


def saved(kind: Any, config: Any, folder: Path, seed: int = 5) -> Any:
    """Saves a model with random weights. Returns it as transformers loads it: results depend on the alignment of weights."""
    torch.manual_seed(seed)
    kind(config).save_pretrained(folder)
    return kind.from_pretrained(folder).eval()


def test_several_models_in_one_block(store: Any, tmp_path: Path) -> None:
    bert, bert_config, bert_inputs = family("bert")
    vit, vit_config, vit_inputs = family("vit")
    want = [
        run(saved(bert, bert_config, tmp_path / "one", 1), bert_inputs),
        run(saved(bert, bert_config, tmp_path / "two", 2), bert_inputs),
        run(saved(vit, vit_config, tmp_path / "vit"), vit_inputs),
    ]
    assert want[0] != want[1], "the models have different weights"
    names = []
    for _ in range(2):
        with ct.shared_weights("several", store):
            made = [
                bert.from_pretrained(tmp_path / "one"),
                bert.from_pretrained(tmp_path / "two"),
                vit.from_pretrained(tmp_path / "vit"),
            ]
        assert [run(made[0], bert_inputs), run(made[1], bert_inputs), run(made[2], vit_inputs)] == want
        found = [ct.attachment(model) for model in made]
        assert {attachment.version for attachment in found} == {1}
        names.append([attachment.name for attachment in found])
    assert names[0] == names[1] and names[0][0] == "several"
    assert len(set(names[0])) == 3 and all(name.startswith("several") for name in names[0])
    # A block whose first model is another one is refused.
    with pytest.raises(cotensor.ConflictError, match="several has weights of the files"), ct.shared_weights("several", store):
        bert.from_pretrained(tmp_path / "two")


def test_several_models_from_configs_in_one_block(store: Any) -> None:
    for _ in range(2):
        torch.manual_seed(5)
        with ct.shared_weights("made", store):
            one = family("bert")[0]._from_config(family("bert")[1])
            other = transformers.ViTModel._from_config(family("vit")[1])
        assert ct.attachment(one).name == "made"
        assert ct.attachment(other).name.startswith("made/ViTModel-")
        assert ct.attachment(one).version == ct.attachment(other).version == 1


def test_base_class_uses_its_part_of_the_weights(store: Any, tmp_path: Path) -> None:
    _, config, inputs = family("bert")
    kind = transformers.BertForSequenceClassification
    want = saved(kind, config, tmp_path)
    with ct.shared_weights("head", store):
        head = kind.from_pretrained(tmp_path)
        base = transformers.AutoModel.from_pretrained(tmp_path)
    assert ct.attachment(base).name == "head" and store.names() == ["head"]
    assert_published(base, store, "head", "bert.")
    with torch.no_grad():
        assert digest(head(**inputs)) == digest(want(**inputs))
        assert digest(base(**inputs)) == digest(want.bert(**inputs))
    # In the other order, the weights with a head are published separately.
    with ct.shared_weights("base", store):
        transformers.AutoModel.from_pretrained(tmp_path)
    for _ in range(2):
        with ct.shared_weights("base", store):
            head = kind.from_pretrained(tmp_path)
        assert ct.attachment(head).name.startswith("base/BertForSequenceClassification-")
        with torch.no_grad():
            assert digest(head(**inputs)) == digest(want(**inputs))


def test_attach_with_prefix_and_key_mapping(store: Any) -> None:
    whole = torch.nn.ModuleDict({"encoder": torch.nn.Linear(3, 4), "head": torch.nn.Linear(4, 2)})
    ct.publish(whole, "whole", store)
    part = torch.nn.Linear(3, 4)
    ct.attach(part, "whole", store, prefix="encoder.")
    assert_published(part, store, "whole", "encoder.")
    ct.publish(torch.nn.ModuleDict({"encoder": torch.nn.Linear(3, 4), "head": torch.nn.Linear(4, 2)}), "whole", store)
    assert ct.refresh(part) and ct.attachment(part).version == 2
    assert_published(part, store, "whole", "encoder.")

    renamed = torch.nn.ModuleDict({"body": torch.nn.Linear(3, 4), "top": torch.nn.Linear(4, 2)})
    ct.attach(renamed, "whole", store, key_mapping={r"^encoder\.": "body.", r"^head": "top"})
    assert_published(renamed["body"], store, "whole", "encoder.")
    assert_published(renamed["top"], store, "whole", "head.")

    other = torch.nn.ModuleDict({"linear": torch.nn.Linear(3, 4)})
    ct.attach(other, "whole", store, prefix="encoder.", key_mapping={"^": "linear."})
    assert_published(other["linear"], store, "whole", "encoder.")

    with pytest.raises(cotensor.InvalidError, match="weight"):
        ct.attach(torch.nn.Linear(3, 4), "whole", store, prefix="decoder.")
    with pytest.raises(cotensor.InvalidError, match="this name"):
        ct.attach(torch.nn.Linear(3, 4), "whole", store, key_mapping={r"^\w+\.": ""})
    for wrong in ({"prefix": 3}, {"key_mapping": ["x"]}, {"key_mapping": {"(": ""}}, {"key_mapping": {"x": 3}}):
        field = next(iter(wrong))
        with pytest.raises(cotensor.InvalidError, match=field) as error:
            ct.attach(torch.nn.Linear(3, 4), "whole", store, **wrong)  # type: ignore[arg-type]
        assert error.value.field == field


@pytest.mark.parametrize("how", ["folder", "auto class", "wrapped"])
def test_adapter_folders_share_the_base(store: Any, tmp_path: Path, how: str) -> None:
    peft = pytest.importorskip("peft")
    kind, config, _ = family("llama")
    saved(kind, config, tmp_path / "base")
    adapted = peft.get_peft_model(
        kind.from_pretrained(tmp_path / "base"),
        peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM"),
    )
    adapted.save_pretrained(tmp_path / "adapter")
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        want = digest(adapted.eval()(ids))

    def load() -> Any:
        if how == "folder":
            return transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
        if how == "auto class":
            return peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
        return peft.PeftModel.from_pretrained(kind.from_pretrained(tmp_path / "base"), tmp_path / "adapter")

    for _ in range(2):
        with ct.shared_weights("adapted", store):
            model = load()
        with torch.no_grad():
            assert digest(model.eval()(ids)) == want
        assert store.names() == ["adapted"] and store.get("adapted").version == 1
        base = ct.state_dict("adapted", store)
        assert not any("lora" in name for name in base)
        weights = [t for name, t in model.named_parameters() if name.endswith("embed_tokens.weight")]
        assert torch.equal(weights[0], base["model.embed_tokens.weight"])


def test_parts_of_a_diffusers_pipeline_are_shared(store: Any, tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers")
    text = transformers.CLIPTextConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48
    )
    torch.manual_seed(0)
    (tmp_path / "vocab.json").write_text('{"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    pipeline = diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(block_out_channels=(32,), norm_num_groups=32),
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=transformers.CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")),
        unet=diffusers.UNet2DConditionModel(
            block_out_channels=(32, 64),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=32,
        ),
        scheduler=diffusers.DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(tmp_path / "pipeline")
    ids = torch.arange(9)[None]
    with torch.no_grad():
        want = digest(pipeline.text_encoder.eval()(ids))
        latents, states = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 32)
        denoised = pipeline.unet(latents, 3, states).sample
        decoded = pipeline.vae.decode(latents).sample
    for _ in range(2):
        with ct.shared_weights("pipeline", store):
            made = diffusers.StableDiffusionPipeline.from_pretrained(tmp_path / "pipeline")
        assert ct.attachment(made.text_encoder).version == 1
        with torch.no_grad():
            assert digest(made.text_encoder.eval()(ids)) == want
            assert torch.equal(made.unet(latents, 3, states).sample, denoised)
            assert torch.equal(made.vae.decode(latents).sample, decoded)
        for part in (made.unet, made.vae):
            assert ct.attachment(part).version == 1
            assert ct.attachment(part).name.startswith(f"pipeline/{type(part).__name__}-")
    assert len(store.names()) == 3 and "pipeline" in store.names()


def test_block_without_shared_models_warns(store: Any) -> None:
    kind, config, _ = family("bert")
    with pytest.warns(UserWarning, match="'nothing'.*nothing is shared") as warned, ct.shared_weights("nothing", store):
        model = kind(config)
    assert ct.attachment(model) is None and warned[0].filename == __file__

    def in_a_thread() -> None:
        kind._from_config(config)

    with pytest.warns(UserWarning, match="nothing is shared"), ct.shared_weights("nothing", store):
        thread = threading.Thread(target=in_a_thread)
        thread.start()
        thread.join()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ct.shared_weights("something", store):
            kind._from_config(config)
        with pytest.raises(KeyError), ct.shared_weights("nothing", store):
            raise KeyError
    assert store.names() == ["something"]


def test_threads_with_the_context_of_the_block_share(store: Any, tmp_path: Path) -> None:
    kind, config, inputs = family("bert")
    want = run(saved(kind, config, tmp_path), inputs)

    async def load() -> List[Any]:
        with ct.shared_weights("in threads", store):
            return list(await asyncio.gather(*(asyncio.to_thread(kind.from_pretrained, tmp_path) for _ in range(3))))

    made = asyncio.run(load())
    assert [run(model, inputs) for model in made] == [want] * 3
    assert {ct.attachment(model).id for model in made} == {store.get("in threads").id}
