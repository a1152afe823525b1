"""`Store.producing` with PyTorch's allocator, and with stand-ins for what PyTorch without CUDA does not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import serving
from device_common import Machine
from functions_common import until

import cotensor

torch = pytest.importorskip("torch")

PROGRAMS = Path(__file__).with_name("torch_producing_programs.py")


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch has CUDA here")
@pytest.mark.parametrize(
    "program", ["tensors_of_a_block_are_published_without_a_copy", "errors_have_their_reason", "captured_stream_is_an_error"]
)
def test_program_without_cuda(program: str, tmp_path: Path) -> None:
    with serving("--max-device-memory=cuda:0=64MiB") as daemon:
        command = [sys.executable, str(PROGRAMS), program, str(daemon.socket)]
        ended = subprocess.run(command, env=Machine(tmp_path).environment(), capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout.endswith("done\n"), ended.stdout + ended.stderr


@pytest.mark.skipif(not hasattr(torch._C, "_cuda_customAllocator"), reason="a PyTorch that was built without CUDA")
def test_pytorch_finds_the_functions() -> None:
    from cotensor.torch import producing

    assert producing.allocator() is producing.allocator()
    assert producing.allocator().allocator() is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no CUDA here")
def test_tensors_of_a_pool_are_published_without_a_copy() -> None:
    with serving("--max-device-memory=cuda:0=1GiB") as daemon, daemon.connect() as store:
        before = torch.cuda.memory_allocated()
        producing = store.producing("cuda:0")
        with producing:
            made = [torch.full((1024, 1024), float(value), device="cuda:0") for value in range(4)]
            large = torch.full((8192, 8192), 7.0, device="cuda:0")
        tensors = [store.put(f"t{number}", tensor) for number, tensor in enumerate([*made, large])]
        assert not [found for found in store.get_diagnostics()["recent_copies"] if found["reason"].lower() == "put"]
        for source, tensor in zip([*made, large], tensors):
            shown = tensor.torch()
            assert torch.equal(shown, source) and shown.data_ptr() != source.data_ptr()
        outside = torch.ones(1024, 1024, device="cuda:0")
        assert torch.equal(store.put("copied", outside).torch(), outside)
        del made, large, outside, source, shown, tensors, tensor
        for name in list(store):
            store.remove(name)
        store.put("one", torch.ones(3, device="cuda:0")).release()
        with producing, pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda:0")
        until(lambda: torch.cuda.memory_allocated() == before)
        del producing


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no CUDA here")
def test_put_beside_and_in_a_capture() -> None:
    with serving("--max-device-memory=cuda:0=1GiB") as daemon, daemon.connect() as store:
        static, other, graph = torch.ones(1024, device="cuda:0"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side = torch.full((1024,), 3.0, device="cuda:0")
        # The first launch loads a kernel, and copies to the host wait: a capture may prohibit both.
        expected, elements = static * 2, side.cpu().numpy().tobytes()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            doubled = static * 2
            with torch.cuda.stream(other):
                assert store.put("side", side).tobytes() == elements
            with pytest.raises(cotensor.ConflictError, match="captured"):
                store.put("w", doubled)
        graph.replay()
        assert torch.equal(store.put("w", doubled).torch(), expected)
