"""Models by family, with the calls of docs/reference/api-names.md."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

import pytest

np = pytest.importorskip("numpy")

from conftest import REPOSITORY  # noqa: E402

import cotensor  # noqa: E402
from cotensor import models  # noqa: E402
from cotensor.models import Backend, create_model, create_webnn_backend  # noqa: E402
from cotensor.sharing import SharedTensor  # noqa: E402

TINY = REPOSITORY / "fixtures" / "tiny"
PHOTO, SPEECH = TINY / "images" / "tall.png", TINY / "audio" / "speech.flac"


#: Models of fixtures/ by the name of their family.
FOLDERS = {folder.name: folder for folder in TINY.iterdir()}
FOLDERS |= {name: TINY.parent / "sounds" / folder for name, folder in (("wav2vec2", "wav2vec2-ctc"), ("clap", "clap-even"))}


@pytest.fixture(params=["local", "daemon"])
def hardware(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    folder = tmp_path / "models"
    folder.mkdir()
    for name, target in FOLDERS.items():
        (folder / name).symlink_to(target)
    if request.param == "local":
        yield Backend(models=folder)
        return
    with request.getfixturevalue("daemon").connect() as store:
        yield Backend(models=folder, store=store)


def opened(hardware: Backend, family: str, **options: Any) -> Any:
    model = create_model(family, hardware, model_id=family, **options)
    asyncio.run(model.initialize())
    return model


#: For each family that has a model in fixtures/: its inputs, its task, and the kinds that it shares.
FAMILIES = {
    "bert": ("a harbour", "sentence-embedding", {"text_embedding"}),
    "t5": ({"text": "a harbour", "max_new_tokens": 4}, "text2text-generation", {"text_embedding"}),
    "bart": ({"text": "a harbour", "max_new_tokens": 4}, "text2text-generation", {"text_embedding"}),
    "llama": ({"text": "a harbour", "max_new_tokens": 4}, "text-generation", set()),
    "vit": ({"image": PHOTO}, "image-embedding", {"vision_embedding"}),
    "clip": ({"image": PHOTO}, "image-embedding", {"vision_text_joint"}),
    "detr": ({"image": PHOTO}, "object-detection", {"vision_embedding"}),
    "blip": ({"image": PHOTO, "task": "image-to-text", "max_new_tokens": 4}, "image-to-text", {"vision_text_joint"}),
    "llava": ({"image": PHOTO, "text": "<image>What is this?", "max_new_tokens": 4}, "image-text-to-text", {"vision_text_joint"}),
    "whisper": ({"audio": SPEECH, "max_new_tokens": 4}, "transcription", {"audio_embedding"}),
    "wav2vec2": ({"audio": SPEECH}, "transcription", {"audio_embedding"}),
    "clap": ({"audio": SPEECH, "texts": ["a dog", "rain"]}, "zero-shot-audio-classification", {"audio_text_joint"}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_processes_its_input_and_shares_its_tensors(hardware: Backend, family: str) -> None:
    inputs, task, kinds = FAMILIES[family]
    create = getattr(models, f"create_{family}_model")
    model = create(hardware, {"modelId": family})
    asyncio.run(model.initialize())
    result = asyncio.run(model.process(inputs))
    assert result["task"] == task and set(result["output_tensors"]) == kinds and model.family == family
    for kind in kinds:
        shared = model.get_shared_tensor(kind)
        assert shared.holders == {family: 1} and shared.space and shared.dimensions == shared.shape
        assert shared.numpy().tobytes() == result["output_tensors"][kind].numpy().tobytes()
    if "text" in result["answer"]:
        assert result.text == result["answer"]["text"]
    else:
        with pytest.raises(cotensor.InvalidError):
            assert result.text
    asyncio.run(model.dispose())


def test_every_family_has_a_creator_under_both_names() -> None:
    titles = "Bert T5 Llama Bart Vit Clip Detr Whisper Wav2Vec2 Clap Llava Blip".split()
    for title in titles:
        create = getattr(models, f"create_{title.lower()}_model")
        assert getattr(models, f"create{title}Model") is create
        assert create(model_id="x").family == title.lower()


def test_counts_follow_the_models(hardware: Backend) -> None:
    vit, clip = opened(hardware, "vit"), opened(hardware, "clip")
    asyncio.run(vit.process(image=PHOTO))
    shared = vit.get_shared_tensor("vision_embedding")
    clip.use_shared_tensor(shared)
    clip.use_shared_tensor(shared)
    assert shared.holders == {"vit": 1, "clip": 2} and shared.get_reference_count() == 3
    clip.release_shared_tensor(shared)
    clip.release_shared_tensor(shared)
    with pytest.raises(cotensor.ConflictError):
        clip.release_shared_tensor(shared)
    clip.use_shared_tensor(shared)
    # A model that is collected releases its tensors like one that is disposed.
    del clip
    gc.collect()
    assert shared.holders == {"vit": 1}
    asyncio.run(vit.process(image=np.zeros((8, 9, 3), np.uint8)))
    assert shared.holders == {}, "the next input replaced it"
    next_one = vit.get_shared_tensor("vision_embedding")
    asyncio.run(vit.dispose())
    asyncio.run(vit.dispose())
    assert next_one.holders == {}
    for call in (lambda: vit.get_shared_tensor("vision_embedding"), lambda: asyncio.run(vit.process(image=PHOTO))):
        with pytest.raises(cotensor.InvalidError) as raised:
            call()
        assert "initialize" in str(raised.value)


def test_tensor_of_an_equal_space_replaces_the_own_stage(hardware: Backend) -> None:
    first, second = opened(hardware, "bert"), opened(hardware, "bert", task="text-classification")
    asyncio.run(first.process("the harbour wakes"))
    shared = first.get_shared_tensor("text_embedding")
    # The tensor brings its text.
    taken = asyncio.run(second.process_with_shared_embedding(None, shared))
    assert [stage["role"] for stage in taken["stages"]] == ["head"]
    assert taken["answer"] == asyncio.run(second.process("the harbour wakes"))["answer"]
    with pytest.raises(cotensor.InvalidError) as raised:
        asyncio.run(second.process_with_shared_embedding("another text", shared))
    assert raised.value.field == "text"
    with pytest.raises(cotensor.ConflictError):
        asyncio.run(second.process_with_shared_embeddings({"one": shared, "two": shared}))


def test_tensor_of_a_result_or_of_a_store_replaces_the_own_stage(hardware: Backend) -> None:
    clip = opened(hardware, "clip")
    made = asyncio.run(clip.process(image=PHOTO))["output_tensors"]["vision_text_joint"]
    expected = asyncio.run(clip.process(image=PHOTO, text="a cat"))["answer"]
    found = hardware.store.get(made.name)
    for tensor in (made, found):
        taken = asyncio.run(clip.process_with_shared_embedding("a cat", tensor))
        assert taken["answer"] == expected and "vision_tower" not in [stage["role"] for stage in taken["stages"]]
    for wrong in (made[:, :3], np.zeros((1, 24), np.float32)):
        with pytest.raises(cotensor.InvalidError) as raised:
            asyncio.run(clip.process_with_shared_embedding("a cat", wrong))
        assert raised.value.field == "shared_embeddings"


def test_tensor_of_another_space_is_refused(hardware: Backend) -> None:
    vit, clip, bert = (opened(hardware, family) for family in ("vit", "clip", "bert"))
    asyncio.run(vit.process(image=PHOTO))
    shared = vit.get_shared_tensor("vision_embedding")
    with pytest.raises(cotensor.InvalidError) as raised:
        asyncio.run(clip.process_with_shared_embedding("a cat", shared))
    assert shared.space in str(raised.value) and "fit-adapter" in str(raised.value)
    with pytest.raises(cotensor.InvalidError) as raised:
        asyncio.run(bert.process_with_shared_embedding("a cat", shared))
    assert "text_embedding" in str(raised.value)
    with pytest.raises(cotensor.InvalidError) as raised:
        asyncio.run(clip.process_with_shared_embedding("a cat", SharedTensor("plain", [1, 4])))
    assert "no space" in str(raised.value)


def test_tokens_stand_for_their_text(hardware: Backend) -> None:
    bert = opened(hardware, "bert")
    tokens = asyncio.run(bert.tokenize("the harbour wakes"))
    assert len(tokens) == len(tokens.input_ids) == len(tokens.attention_mask) > 2 and set(tokens.attention_mask) == {1}
    by_tokens, by_text = asyncio.run(bert.process(tokens)), asyncio.run(bert.process({"text": tokens}))
    assert by_tokens["outputs"] == by_text["outputs"] == asyncio.run(bert.process("the harbour wakes"))["outputs"]
    others = [replace(tokens, input_ids=tokens.input_ids[::-1]), replace(tokens, attention_mask=(0,) * len(tokens))]
    for other, field in zip(others, ("input_ids", "attention_mask")):
        with pytest.raises(cotensor.InvalidError, match=f"{field}: .* of the text 'the harbour wakes'"):
            asyncio.run(bert.process(other))


def test_image_data_of_a_browser(hardware: Backend) -> None:
    vit = opened(hardware, "vit")
    pixels = np.random.default_rng(3).integers(0, 256, (20, 30, 4), dtype=np.uint8)

    def outputs(image: Any, **size: int) -> Any:
        return asyncio.run(vit.process({"imageData": image, **size}))["outputs"]

    size = {"width": 30, "height": 20}
    expected = outputs(np.ascontiguousarray(pixels[..., :3]))
    assert outputs(pixels.tobytes(), **size) == outputs(pixels, **size) == outputs(pixels[..., :3].tobytes(), **size) == expected
    for wrong in ({"width": 20, "height": 30}, {"width": 30}):
        with pytest.raises(cotensor.InvalidError):
            outputs(pixels, **wrong)


def test_backend_reports_its_device_and_has_one_configuration() -> None:
    hardware = create_webnn_backend(models=TINY)
    assert hardware.device == "cpu" and "browser" in hardware.skipped["webnn"]
    config = {"allowedTypes": ["vision_embedding"], "maxSharedTensorSize": 1 << 20}
    bert = opened(hardware, "bert", shared_tensor_config=config)
    asyncio.run(bert.process("a harbour"))
    assert bert.skipped == hardware.skipped
    private = bert.get_shared_tensor("text_embedding")
    assert private.private
    with pytest.raises(cotensor.RefusedError):
        opened(hardware, "t5", shared_tensor_config=config).use_shared_tensor(private)
    with pytest.raises(cotensor.ConflictError):
        opened(hardware, "t5", shared_tensor_config={"enableSharedTensors": False})
    with pytest.raises(cotensor.ConflictError):
        create_model("t5", Backend(store=cotensor.Store()), model_id="t5", shared_tensor_config=config)
    with pytest.raises(cotensor.InvalidError):
        Backend(shared_tensor_config={"colour": 1})


def test_optimized_ops_choose_the_engine() -> None:
    hardware = Backend(models=TINY)
    plain, fast = opened(hardware, "bert", use_optimized_ops=False), opened(hardware, "bert", use_optimized_ops=True)
    one, two = (asyncio.run(model.process("a harbour"))["outputs"][0]["values"] for model in (plain, fast))
    assert np.allclose(one, two, atol=1e-5)


def test_wrong_options_are_refused() -> None:
    for options in ({}, {"modelId": ""}, {"modelId": "bert", "colour": 1}, {"modelId": "bert", "model_id": "bert"}):
        with pytest.raises(cotensor.InvalidError):
            create_model("bert", options=options)
    hardware = Backend(models=TINY)
    with pytest.raises(cotensor.InvalidError) as raised:
        asyncio.run(create_model("vit", hardware, model_id="bert").initialize())
    assert "BERT" in str(raised.value)
    with pytest.raises(cotensor.UnsupportedError):
        opened(hardware, "bert", precision=5)
    with pytest.raises(cotensor.NotFoundError):
        asyncio.run(_in_context(hardware))


async def _in_context(hardware: Backend) -> None:
    async with create_model("bert", hardware, model_id="bert") as model:
        model.get_shared_tensor("text_embedding")
