"""Tensors on a GPU as tensors of PyTorch, where PyTorch has CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest
from conftest import serving
from device_common import InstalledMachine, Machine
from device_programs_common import Program, run

import cotensor

torch = pytest.importorskip("torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch has CUDA here")
@pytest.mark.parametrize("program", ["torch_without_cuda", "torch_has_the_device_of_an_array_as_current_one"])
def test_pytorch_without_cuda(program: str, tmp_path: Path) -> None:
    with serving("--max-device-memory=cuda:0=64MiB") as daemon:
        run("device_programs.py", program, daemon, Machine(tmp_path).environment())


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no CUDA here")


@pytest.fixture
def store() -> Iterator[cotensor.Store]:
    with serving("--max-device-memory=cuda:0=1GiB") as daemon, daemon.connect() as opened:
        yield opened


@needs_cuda
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "complex64", "bool"])
def test_put_and_get_stay_on_the_device(store: cotensor.Store, dtype: str) -> None:
    source = torch.arange(4096, device="cuda:0").remainder(2).to(getattr(torch, dtype))
    tensor = store.put("w", source)
    shown = tensor.torch()
    assert (tensor.device, shown.device, shown.dtype) == ("cuda:0", source.device, source.dtype)
    assert shown.data_ptr() == tensor.data_ptr != source.data_ptr()
    assert torch.equal(shown.view(torch.uint8), source.view(torch.uint8))
    assert torch.from_dlpack(store["w"]).data_ptr() == tensor.data_ptr


@needs_cuda
def test_put_waits_for_the_stream_of_the_array(store: cotensor.Store) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        for value in range(10):
            large = torch.ones(2048, 2048, device="cuda:0")
            for _ in range(20):
                large = large @ large / 2048
            source = large * value
            tensor = store.put("w", source)
            assert torch.equal(tensor.torch(), torch.full_like(source, value)), value


@needs_cuda
def test_builder_is_filled_by_kernels(store: cotensor.Store) -> None:
    builder = store.empty("w", (1024, 1024), device="cuda:0")
    torch.from_dlpack(builder).fill_(3)
    tensor = builder.publish()
    assert tensor.tobytes() == torch.full((1024, 1024), 3.0).numpy().tobytes()


@needs_cuda
def test_module_outlives_the_process_that_published_it() -> None:
    with serving("--max-device-memory=cuda:0=1GiB") as daemon:
        publisher = Program("torch_gpu_programs.py", "publishes", daemon, InstalledMachine(), "published")
        reader = Program("torch_gpu_programs.py", "attaches", daemon, InstalledMachine(), "attached")
        publisher.kill()
        reader.ends()


@needs_cuda
def test_programs_hold_each_resident_weight_once() -> None:
    machine, script = InstalledMachine(), "torch_gpu_programs.py"
    with serving("--max-device-memory=cuda:0=1GiB") as daemon:
        run(script, "publishes_on_the_host", daemon, machine.environment())
        first = Program(script, "offloads", daemon, machine, "copied all weights")
        second = Program(script, "offloads", daemon, machine, "copied no weight")
        first.ends()
        second.ends()
