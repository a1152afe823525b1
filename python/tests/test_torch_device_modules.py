"""Modules on a GPU, on a fake driver: each program of `torch_device_programs` is a process with a GPU of its own machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest
from conftest import serving
from device_common import Machine
from device_programs_common import Program, run

from cotensor.errors import UnsupportedError

torch = pytest.importorskip("torch")

from cotensor.torch.transformers.patches import default_device, wanted_device  # noqa: E402

PROGRAMS = "torch_device_programs.py"

ALONE = [
    "module_is_one_tensor_on_its_device",
    "publication_follows_the_work_of_the_device",
    "training_module_is_warned_of",
    "buffers_of_parts_in_training_mode_are_private",
    "places_that_differ_are_named",
    "failed_copy_publishes_nothing",
    "shared_weights_of_another_device_are_refused",
    "models_of_configurations_are_attached_on_the_default_device",
]


@pytest.mark.parametrize("program", ALONE)
def test_process_with_a_module_on_a_gpu(program: str, tmp_path: Path) -> None:
    with serving("--max-device-memory=cuda:0=64MiB") as daemon:
        run(PROGRAMS, program, daemon, Machine(tmp_path).environment())


@pytest.mark.parametrize(
    ("device_map", "device"),
    [
        (None, "cpu"),
        ({"": "cpu"}, "cpu"),
        ({"": "cuda"}, "cuda:3"),
        ({"": torch.device("cuda")}, "cuda:3"),
        ({"a": "cuda", "b": 3}, "cuda:3"),
        ({"a": 1, "b": "cuda:1", "c": "meta"}, "cuda:1"),
        ({"a": torch.device("cuda", 2)}, "cuda:2"),
    ],
)
def test_device_map_of_one_device(device_map: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA without a number is the current device."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert wanted_device(device_map) == torch.device(device)


@pytest.mark.parametrize(
    "device_map", [{"a": 0, "b": 1}, {"a": "cpu", "b": 0}, {"a": "cuda:0", "b": "cuda"}, {"": "mps"}, {"": "disk"}]
)
def test_other_device_maps_are_refused(device_map: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    with pytest.raises(UnsupportedError, match="shared weights are on") as raised:
        wanted_device(device_map)
    assert raised.value.field == "device_map"


@pytest.mark.parametrize(
    ("default", "device"),
    [
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        (torch.device("cuda", 2), "cuda:2"),
        ("meta", "cpu"),
        (torch.device("mps", 0), None),
    ],
)
def test_default_device(default: Any, device: Optional[str]) -> None:
    with torch.device(default):
        if device is not None:
            assert default_device() == torch.device(device)
            return
        with pytest.raises(UnsupportedError, match="the default device is mps:0, and shared weights are on"):
            default_device()


def test_attached_module_outlives_its_publisher(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with serving("--max-device-memory=cuda:0=64MiB") as daemon:
        producer = Program(PROGRAMS, "publishes", daemon, machine, "published")
        consumer = Program(PROGRAMS, "attaches", daemon, machine, "attached")
        producer.kill()
        consumer.go_on()
        consumer.reaches("read again")
        consumer.ends()
        with daemon.connect() as store:
            assert "m" in store
