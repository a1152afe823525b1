"""The resource pool, with the tiny models of fixtures/."""

from __future__ import annotations

import asyncio
import gc
import threading
import wave
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from conftest import REPOSITORY  # noqa: E402
from memory_common import mapped_at  # noqa: E402

import cotensor  # noqa: E402
from cotensor.pool import ResourcePoolBridgeIntegration  # noqa: E402

TINY = REPOSITORY / "fixtures" / "tiny"
PHOTO = TINY / "images" / "tall.png"


@pytest.fixture(params=["local", "daemon"])
def pool(request: pytest.FixtureRequest) -> ResourcePoolBridgeIntegration:
    store = None if request.param == "local" else request.getfixturevalue("daemon").connect()
    return ResourcePoolBridgeIntegration(max_connections=2, models=TINY, store=store)


def get(pool: ResourcePoolBridgeIntegration, *args: Any, **kwargs: Any) -> Any:
    return asyncio.run(pool.get_model(*args, **kwargs))


def test_text_is_computed_once(pool: ResourcePoolBridgeIntegration) -> None:
    manager = pool.setup_tensor_sharing()
    first, second = get(pool, "text_embedding", "bert"), get(pool, "bert", "bert")
    assert first.is_same_copy(second) and first.family == "bert"
    one, two = first("Sample text"), second({"text": "Sample text"})
    assert two["output_tensors"]["text_embedding"].id == one["output_tensors"]["text_embedding"].id
    assert [stage["computed"] for stage in two["stages"]] == [False]
    shown = one["output_tensors"]["text_embedding"].numpy()
    assert shown.ndim == 3 and not shown.flags.writeable and np.isfinite(shown).all()
    # The answer is the normalized mean of the stage's output.
    mean = shown[0].mean(axis=0)
    (output,) = one["outputs"]
    assert np.allclose(np.reshape(output["values"], -1), mean / np.linalg.norm(mean), atol=1e-5)
    other = first("Another text")["output_tensors"]["text_embedding"]
    assert other.id != one["output_tensors"]["text_embedding"].id
    assert manager.get_stats()["cache_hits"] > 0


def test_image_is_a_path_bytes_or_an_array(pool: ResourcePoolBridgeIntegration) -> None:
    model = get(pool, "vision", "vit")
    by_path, by_bytes = model({"image": PHOTO}), model(image=PHOTO.read_bytes())
    assert by_path["output_tensors"]["vision_embedding"].id == by_bytes["output_tensors"]["vision_embedding"].id
    pixels = np.random.default_rng(1).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    by_array = model({"image": pixels})["output_tensors"]["vision_embedding"].numpy()
    assert by_array.shape == by_path["output_tensors"]["vision_embedding"].shape
    assert not np.array_equal(by_array, model({"image": pixels[::-1]})["output_tensors"]["vision_embedding"].numpy())
    for wrong in (pixels[..., 0], pixels.astype("float32"), pixels[:0]):
        with pytest.raises(cotensor.InvalidError):
            model({"image": wrong})
    with pytest.raises(cotensor.CorruptError):
        model({"image": b"no image"})
    with pytest.raises(cotensor.NotFoundError):
        model({"image": Path("/nowhere.png")})


def test_tensor_is_shared_between_models(pool: ResourcePoolBridgeIntegration) -> None:
    manager = pool.setup_tensor_sharing()
    result = get(pool, "vision", "vit")({"image": PHOTO})
    embedding = result["output_tensors"]["vision_embedding"]

    async def share() -> Any:
        return await pool.share_tensor_between_models(
            tensor_data=embedding,
            tensor_name="vit_embedding",
            producer_model="vit",
            consumer_models=["clip"],
            storage_type="cpu",
        )

    shared = asyncio.run(share())
    assert shared.holders == {"vit": 1, "clip": 1} and shared.kind == "vision_embedding"
    assert shared.numpy().tobytes() == embedding.numpy().tobytes()
    again = manager.get_shared_tensor("vit_embedding", "clip")
    shown = [again.numpy(), shared.numpy()]
    assert len({mapped_at(array.ctypes.data) for array in shown}) == 1, "the same memory"
    with pytest.raises(cotensor.ConflictError):
        asyncio.run(share())
    manager.release_model_tensors("vit")
    manager.release_model_tensors("clip")
    with pytest.raises(cotensor.UnsupportedError) as raised:
        asyncio.run(pool.share_tensor_between_models([1.0], "x", "vit", ["clip"], storage_type="cuda"))
    assert "cuda" in str(raised.value)
    placed = asyncio.run(pool.share_tensor_between_models([1.0], "x", "vit", ["clip"], storage_type="webgpu"))
    assert placed.storage_type == "cpu" and "browser" in placed.skipped["webgpu"]


def test_unavailable_devices_are_skipped_with_reasons(pool: ResourcePoolBridgeIntegration) -> None:
    model = get(pool, "text", "bert", hardware_preferences={"priority_list": ["webgpu", "cuda", "tpu", "cpu"]})
    assert model.device == "cpu" and list(model.skipped) == ["webgpu", "cuda", "tpu"]
    assert "browser" in model.skipped["webgpu"] and all(model.skipped.values())
    with pytest.raises(cotensor.UnsupportedError) as raised:
        get(pool, "text", "bert", hardware_preferences={"priority_list": ["webgpu"]})
    assert "webgpu" in str(raised.value)
    with pytest.raises(cotensor.UnsupportedError) as raised:
        get(pool, "text", "bert", hardware_preferences={"priority_list": ["cpu"], "batch": 2})
    assert "batch" in str(raised.value)


def test_precision_chooses_the_variant_of_the_graphs(pool: ResourcePoolBridgeIntegration) -> None:
    plain = get(pool, "text", "bert")
    chosen = get(pool, "text", "bert", hardware_preferences={"precision": "fp32"})
    assert chosen("Sample text")["answer"] == plain("Sample text")["answer"]
    assert chosen.is_same_copy(get(pool, "text", "bert", hardware_preferences={"precision": 32}))
    with pytest.raises(cotensor.NotFoundError) as raised:
        get(pool, "text", "bert", hardware_preferences={"precision": 16})
    assert raised.value.field == "variant" and all(part in str(raised.value) for part in ("fp16", "onnx/model.onnx"))


def test_wrong_models_and_inputs_are_refused(pool: ResourcePoolBridgeIntegration) -> None:
    for model_type, name, error in (
        ("vision", "bert", cotensor.InvalidError),
        ("soup", "bert", cotensor.InvalidError),
        ("text", "../tiny/bert", cotensor.InvalidError),
        ("text", "", cotensor.InvalidError),
        ("text", "unknown", cotensor.NotFoundError),
    ):
        with pytest.raises(error):
            get(pool, model_type, name)
    model = get(pool, "text", "bert")
    for inputs in ({}, {"audio": TINY / "audio" / "speech.flac"}, {"colour": "red"}, {"text": "x", "image": PHOTO}):
        with pytest.raises(cotensor.InvalidError):
            model(inputs)
    with pytest.raises(cotensor.InvalidError):
        model("x", task="transcription")
    with pytest.raises(cotensor.InvalidError):
        ResourcePoolBridgeIntegration(max_connections=0, models=TINY)


def test_concurrent_callers_load_one_copy(pool: ResourcePoolBridgeIntegration) -> None:
    async def get_all() -> list[Any]:
        return await asyncio.gather(*(pool.get_model("text", "bert") for _ in range(8)))

    models = asyncio.run(get_all())
    assert all(models[0].is_same_copy(model) for model in models)
    ids: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda model=model: ids.append(model("One text")["output_tensors"]["text_embedding"].id)
        )
        for model in models
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8 and len(set(ids)) == 1


def test_memory_limit_includes_weights() -> None:
    pool = ResourcePoolBridgeIntegration(models=TINY)
    manager = pool.setup_tensor_sharing(max_memory_mb=64)
    model = get(pool, "text", "bert")
    model("text")
    used = manager.get_stats()["memory_usage_bytes"]
    assert used > 10_000
    assert pool.setup_tensor_sharing(max_memory_mb=32) is manager
    del model
    gc.collect()
    manager.optimize_memory_usage()
    assert manager.get_stats()["memory_usage_bytes"] < used


def test_texts_are_ranked_by_image(pool: ResourcePoolBridgeIntegration) -> None:
    model = get(pool, "vision", "clip")
    assert model.family == "clip" and model.is_same_copy(get(pool, "clip", "clip"))
    ranked = model({"image": PHOTO, "texts": ["a harbour", "a wood"]})
    assert ranked["output_tensors"].keys() == {"vision_text_joint"}
    # Another call with the same image reuses the image's embedding.
    again = model({"image": PHOTO, "texts": ["a street", "a harbour"]})
    image = ranked["output_tensors"]["vision_text_joint"]
    assert again["output_tensors"]["vision_text_joint"].id == image.id
    with pytest.raises(cotensor.InvalidError):
        model({"image": PHOTO, "texts": []})


def test_speech_is_encoded_once(pool: ResourcePoolBridgeIntegration, tmp_path: Path) -> None:
    file = tmp_path / "tone.wav"
    tone = np.sin(np.arange(16_000) * (440 * 2 * np.pi / 16_000))
    with wave.open(str(file), "wb") as wav:
        wav.setparams((1, 2, 16_000, 0, "NONE", ""))
        wav.writeframes((tone * 20_000).astype("<i2").tobytes())
    model = get(pool, "audio", "whisper")
    first, again = model(audio=file), model(audio=file.read_bytes())
    assert first["answer"] == again["answer"]
    assert first["output_tensors"]["audio_embedding"].id == again["output_tensors"]["audio_embedding"].id
    shorter = model(audio=file, max_new_tokens=1)
    assert len(shorter["answer"]) <= len(first["answer"])
    assert model(audio=file, max_new_tokens=np.int64(1))["answer"] == shorter["answer"]
    with pytest.raises(cotensor.CorruptError):
        model(audio=b"RIFF")


def test_engine_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def embedding(pool: ResourcePoolBridgeIntegration) -> Any:
        return np.array(get(pool, "text", "bert")("Sample text")["outputs"][0]["values"])

    chosen = ResourcePoolBridgeIntegration(models=TINY, engine="rten")
    automatic = ResourcePoolBridgeIntegration(models=TINY, engine="auto")
    assert np.allclose(embedding(chosen), embedding(automatic), atol=1e-5)
    for wrong in ({"engine": "torch"}, {"engine": 1}):
        with pytest.raises(cotensor.InvalidError) as raised:
            ResourcePoolBridgeIntegration(models=TINY, **wrong)
        assert "engine" in str(raised.value)
    monkeypatch.setenv("COTENSOR_ENGINE", "torch")
    with pytest.raises(cotensor.InvalidError):
        ResourcePoolBridgeIntegration(models=TINY)
