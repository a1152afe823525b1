"""Models of a pool with weights of few bits: made once for all programs, with the errors that were measured."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

pytest.importorskip("numpy")

import numpy  # noqa: E402

import cotensor  # noqa: E402
from cotensor.pool import Model, ResourcePoolBridgeIntegration  # noqa: E402
from cotensor.ultra_low_precision import setup_ultra_low_precision  # noqa: E402

TINY = REPOSITORY / "fixtures" / "tiny"
TEXTS = [f"the {number} boats wait in harbour {number % 7}" for number in range(40)]


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResourcePoolBridgeIntegration:
    monkeypatch.setenv("COTENSOR_CACHE", str(tmp_path / "cache"))
    return ResourcePoolBridgeIntegration(models=TINY, threads=1)


def get(pool: ResourcePoolBridgeIntegration, model_type: str, name: str, **preferences: Any) -> Model:
    return asyncio.run(pool.get_model(model_type, name, preferences))


def embedding(model: Model) -> Any:
    return model("the harbour wakes")["output_tensors"]["text_embedding"].numpy().astype("float64").ravel()


def times(folder: Path) -> "dict[Path, int]":
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_models_are_quantized_once_and_closer_with_more_bits(pool: ResourcePoolBridgeIntegration, tmp_path: Path) -> None:
    full = embedding(get(pool, "text", "bert"))
    errors = []
    for bits in (2, 3, 4, 8):
        model = get(pool, "text_embedding", "bert", precision=bits)
        assert model.quantization is not None and model.family == "bert"
        matrices = [matrix for graph in model.quantization["graphs"] for matrix in graph["matrices"]]
        assert matrices and {matrix["bits"] for matrix in matrices} == {bits}
        errors.append(numpy.linalg.norm(embedding(model) - full) / numpy.linalg.norm(full))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.02 and errors[0] > 0.1
    made = times(tmp_path)
    assert len(made) > 10
    again = ResourcePoolBridgeIntegration(models=TINY, threads=1)
    assert get(again, "text", "bert", precision=4).quantization == get(pool, "text", "bert", precision=4).quantization
    assert times(tmp_path / "cache" / "derived") == {path: at for path, at in made.items() if "derived" in path.parts}
    assert get(pool, "text", "bert").quantization is None


def test_folders_of_earlier_versions_give_the_same_embedding() -> None:
    low_bit = REPOSITORY / "fixtures" / "low-bit"
    reference = json.loads((low_bit / "reference.json").read_text())
    model = get(ResourcePoolBridgeIntegration(models=low_bit, threads=1), "text", "bert", precision=4)
    values = model(reference["text"])["output_tensors"]["text_embedding"].numpy()
    assert list(values.shape) == reference["shape"]
    numpy.testing.assert_allclose(values.ravel(), reference["values"], atol=2e-5)


def test_codes_in_the_store_have_their_bits_and_errors(store: cotensor.Store) -> None:
    low_bit = REPOSITORY / "fixtures" / "low-bit"
    pool = ResourcePoolBridgeIntegration(models=low_bit, store=store, threads=1, engine="rten")
    model = get(pool, "text", "bert", precision=4)
    embedding(model)
    assert model.quantization is not None
    found = {}
    encoder = next(graph for graph in model.quantization["graphs"] if graph["file"] == "onnx/model.onnx")
    for matrix in encoder["matrices"]:
        for name in store.names(f"weight/bert/{matrix['name']}.codes/"):
            found[matrix["name"]] = metadata = store[name].metadata
            assert {key: metadata[key] for key in ("scheme", "bits", "group")} == {"scheme": "search", "bits": 4, "group": 32}
            assert metadata["relative_error"] == matrix["relative_error"] and metadata["output_error"] is None
            assert metadata["stored_bits"] == 4.5
    assert found["embeddings.word_embeddings.weight"]["run_bits"] == 4.0  # Its scales are too small to be shared.


def test_widths_are_mixed_by_errors_on_samples(pool: ResourcePoolBridgeIntegration) -> None:
    steps = []
    config = setup_ultra_low_precision(
        "bert", "text", 3, calibration=TEXTS, pool=pool, progress=lambda *step: steps.append(step)
    )
    assert config.report is not None and config.bits_per_weight is not None
    assert config.report["samples"] + config.report["held_out"] == 40
    assert config.bits_per_weight <= 3.5 and config.report["mixed"]["target_bits"] == 3.5
    assert any(error is not None for error in config.output_errors.values())
    assert {step for step, _, _ in steps} > {"running samples", "comparing outputs"}
    assert all(0 <= done <= total for _, done, total in steps)
    model = get(pool, "text", "bert", **config.hardware_preferences)
    assert model.quantization == config.report and Path(config.folder).name == "bert"
    assert config.context_tokens == 64 and any("no cache" in notice for notice in config.notices)


def test_variants_of_other_programs_come_first(pool: ResourcePoolBridgeIntegration) -> None:
    model = get(pool, "text", "qwen2", precision=4)
    assert model.quantization is None
    config = setup_ultra_low_precision("qwen2", "text", 4, False, extended_context=True, pool=pool)
    assert config.report is None and config.bits_per_weight is None and Path(config.folder) == TINY / "qwen2"
    assert any("the context of" in notice for notice in config.notices)


def test_impossible_precisions_are_refused_by_name(pool: ResourcePoolBridgeIntegration, tmp_path: Path) -> None:
    for error, field, preferences in (
        (cotensor.UnsupportedError, "precision", {"precision": 5}),
        (cotensor.UnsupportedError, "precision", {"precision": "int3"}),
        (cotensor.UnsupportedError, "mixed_precision", {"precision": 16, "mixed_precision": True}),
        (cotensor.InvalidError, "mixed_precision", {"mixed_precision": True}),
        (cotensor.InvalidError, "mixed_precision", {"precision": 4, "mixed_precision": "yes"}),
        (cotensor.InvalidError, "calibration", {"precision": 4, "calibration": TEXTS[:3]}),
        (cotensor.NotFoundError, "calibration", {"precision": 4, "calibration": tmp_path / "none.txt"}),
        (cotensor.InvalidError, "calibration", {"precision": 4, "calibration": 7}),
    ):
        with pytest.raises(error) as raised:
            get(pool, "text", "bert", **preferences)
        assert raised.value.field == field, preferences
    with pytest.raises(cotensor.InvalidError) as raised:
        get(pool, "vision", "vit", precision=2, mixed_precision=True)
    assert raised.value.field == "calibration" and "ViT reads no texts" in str(raised.value)
    with pytest.raises(cotensor.InvalidError) as raised:
        get(pool, "vision", "bert", precision=2)
    assert raised.value.field == "model_type"
    assert not list((tmp_path / "cache").rglob("*.onnx")), "a model of another type is not quantized"


def test_quantized_folders_keep_their_bits(pool: ResourcePoolBridgeIntegration, tmp_path: Path) -> None:
    quantized = ResourcePoolBridgeIntegration(models=REPOSITORY / "fixtures" / "low-bit", threads=1)
    with pytest.raises(cotensor.UnsupportedError) as raised:
        get(quantized, "text", "bert", precision=3)
    assert raised.value.field == "precision" and "quantized already" in str(raised.value)
    get(pool, "text", "bert", precision=3)
    with pytest.raises(cotensor.InvalidError) as empty:
        get(pool, "text", "bert", precision=3, calibration=[])
    assert empty.value.field == "calibration", "no samples are not the same as none asked for"
    # A folder of mixed widths has the bits for which these were chosen.
    shutil.copytree(REPOSITORY / "fixtures" / "low-bit" / "bert", tmp_path / "mixed" / "bert")
    path = tmp_path / "mixed" / "bert" / "quantization.json"
    report = json.loads(path.read_text())
    report["mixed"] = {
        "target_bits": 8.5,
        "bits": 8.4,
        "uniform_bits": None,
        "output_error": 0.1,
        "uniform_output_error": None,
        "divergence": None,
        "uniform_divergence": None,
        "is_mixed": True,
        "runs": 8,
    }
    path.write_text(json.dumps(report))
    mixed = ResourcePoolBridgeIntegration(models=tmp_path / "mixed", threads=1)
    for bits in (2, 4):
        with pytest.raises(cotensor.UnsupportedError) as other:
            get(mixed, "text", "bert", precision=bits, mixed_precision=True)
        assert other.value.field == "precision" and "quantized already" in str(other.value)
    found = get(mixed, "text", "bert", precision=8, mixed_precision=True).quantization
    assert found is not None and found["mixed"] == report["mixed"]


def test_a_changed_file_makes_the_copy_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENSOR_CACHE", str(tmp_path / "cache"))
    shutil.copytree(TINY / "bert", tmp_path / "models" / "bert")
    inner = tmp_path / "models" / "bert" / "assets" / "notes"
    inner.mkdir(parents=True)
    (inner / "a.txt").write_text("first")

    def copied() -> str:
        config = setup_ultra_low_precision("bert", "text", 4, False, models=tmp_path / "models")
        return (Path(config.folder) / "assets" / "notes" / "a.txt").read_text()

    assert copied() == "first"
    (inner / "a.txt").write_text("other")
    assert copied() == "other"


def test_a_copy_that_a_program_has_open_is_not_pruned(pool: ResourcePoolBridgeIntegration, tmp_path: Path) -> None:
    def prune() -> int:
        command = [sys.executable, "-m", "cotensor", "cache", "prune", "--all", "--json"]
        pruned: Any = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
        return int(pruned["removed_packs"])

    model = get(pool, "text", "bert", precision=4)
    assert prune() == 0 and embedding(model).any() and model.quantization is not None
    del model
    gc.collect()
    assert prune() == 1


def test_errors_of_progress_reach_the_caller(pool: ResourcePoolBridgeIntegration) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no display")

    with pytest.raises(RuntimeError, match="no display"):
        setup_ultra_low_precision("bert", "text", 4, False, pool=pool, progress=fails)
    assert get(pool, "text", "bert", precision=4).quantization is not None


def test_interrupt_ends_the_wait_for_a_model_that_is_quantized(tmp_path: Path) -> None:
    environment = {**os.environ, "COTENSOR_CACHE": str(tmp_path / "cache")}
    script = (
        "import asyncio, sys; from cotensor.pool import ResourcePoolBridgeIntegration;"
        " pool = ResourcePoolBridgeIntegration(models=sys.argv[1], threads=1);"
        " asyncio.run(pool.get_model('text', 'bert', {'precision': 3}))"
    )
    program = [sys.executable, "-c", script, str(TINY)]
    subprocess.run(program, env=environment, check=True, timeout=120)
    derived = tmp_path / "cache" / "derived"
    locks = list(derived.glob(".lock-*"))
    for made in derived.iterdir():
        if made.is_dir():
            shutil.rmtree(made)
    # Another program makes the copy, for ever.
    with contextlib.ExitStack() as locked:
        for lock in locks:
            fcntl.flock(locked.enter_context(lock.open("w")), fcntl.LOCK_EX)
        waiting = subprocess.Popen(program, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
        try:
            while not any(".lock-" in name for name in open_files(waiting.pid)):
                assert waiting.poll() is None
                time.sleep(0.02)
            waiting.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in waiting.communicate(timeout=60)[1]
        finally:
            waiting.kill()


def heed_interrupts() -> None:
    """Background processes of a shell ignore SIGINT, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def open_files(process: int) -> "list[str]":
    found = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(link))
    return found
