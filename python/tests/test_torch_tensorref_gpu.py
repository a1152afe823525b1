"""Offloading to the device that COTENSOR_TEST_DEVICE names: the simulated one, or "cuda" (`make test-gpu`).

Outputs, gradients and steps of optimizers are compared with those of a model that is on the device as a whole.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
from conftest import serving

torch = pytest.importorskip("torch")

import cotensor.torch  # noqa: E402
from cotensor.tensorref import offload, simulated_device  # noqa: E402

DEVICE = os.environ.get("COTENSOR_TEST_DEVICE", "simulated")
STRATEGIES = ["genoa", "flow", "lru", "pinned", "cpu"]
WIDTH, LAYERS = (64, 4) if DEVICE == "simulated" else (512, 8)
LAYER_BYTES = 4 * WIDTH * (WIDTH + 1)


@pytest.fixture(scope="module", autouse=True)
def device():
    """The device, which has to be there. Matrix products in float32 have float32's precision."""
    if DEVICE == "simulated":
        simulated_device()
    module = torch.get_device_module(DEVICE)
    assert module.is_available(), f"COTENSOR_TEST_DEVICE names {DEVICE}, which is not available"
    torch.backends.cuda.matmul.allow_tf32 = False
    # Tests with PyTorch's database of operators, which may be in this process, leave the flags of cuDNN to such blocks.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def mlp():
    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    return torch.nn.Sequential(*layers), (torch.randn(4, WIDTH),)


def convolutions():
    channels = (3, 32, 64, 64)
    layers = [
        part
        for size, count in zip(channels, channels[1:])
        for part in (torch.nn.Conv2d(size, count, 3, padding=1), torch.nn.BatchNorm2d(count), torch.nn.ReLU())
    ]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 16 * 16, 10)), (torch.randn(2, 3, 16, 16),)


def transformer():
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (torch.randn(2, 16, 256),)


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=500
    )
    return transformers.LlamaForCausalLM(config), (torch.randint(0, 500, (2, 16)),)


#: The simulated device runs larger models in other files.
MODELS = [mlp, convolutions] if DEVICE == "simulated" else [mlp, convolutions, transformer, llama]


def made(make):
    torch.manual_seed(0)
    model, inputs = make()
    return model.eval(), inputs


def size_bytes(model):
    return sum(parameter.nbytes for parameter in model.parameters())


def allocated():
    module = torch.get_device_module(DEVICE)
    return int(module.memory_allocated(torch.device(DEVICE, 0)))


def memory_for(weights_bytes):
    """The memory for these bytes of weights, beside the tensors of other tests and activations."""
    return int(weights_bytes) + allocated() + (4 << 20)


def result(output):
    return output.logits if hasattr(output, "logits") else output


def close(actual, expected):
    torch.testing.assert_close(actual.detach().cpu(), expected.detach().cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.5, 1.5])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("make", MODELS)
def test_outputs_are_those_of_the_device(make, strategy, share):
    model, inputs = made(make)
    there = copy.deepcopy(model).to(DEVICE)
    with torch.no_grad():
        expected = result(there(*[value.to(DEVICE) for value in inputs])).cpu()
    del there
    memory = memory_for(share * size_bytes(model))
    with offload(model, DEVICE, strategy=strategy, memory=memory, broker=False), torch.no_grad():
        for _ in range(5):
            close(result(model(*inputs)), expected)
    assert all(parameter.is_cpu for parameter in model.parameters())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("make", MODELS[:3])
def test_gradients_are_those_of_the_device(make, strategy):
    model, inputs = made(make)
    there = copy.deepcopy(model).to(DEVICE)
    there(*[value.to(DEVICE) for value in inputs]).square().mean().backward()
    with offload(model, DEVICE, strategy=strategy, memory=memory_for(size_bytes(model)), broker=False):
        for _ in range(3):
            model.zero_grad()
            model(*inputs).square().mean().backward()
    for parameter, other in zip(model.parameters(), there.parameters()):
        close(parameter.grad, other.grad)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("fused", [False, True], ids=["", "fused"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_is_that_of_the_device(optimizer, strategy, fused):
    """Fused optimizers write parameters without a new version."""
    model, inputs = made(mlp)
    there = copy.deepcopy(model).to(DEVICE)

    def train(trained, given):
        # The simulated device has no fused kernels. The parameters of an offloaded model are on the host.
        steps, losses = optimizer(trained.parameters(), lr=1e-3, fused=fused and trained is model), []
        for _ in range(5):
            steps.zero_grad()
            loss = trained(*given).square().mean()
            loss.backward()
            steps.step()
            losses.append(loss.item())
        return losses

    expected = train(there, [value.to(DEVICE) for value in inputs])
    with offload(model, DEVICE, strategy=strategy, memory=memory_for(size_bytes(model)), broker=False):
        losses = train(model, inputs)
    assert losses == pytest.approx(expected, rel=1e-3) and losses[-1] < losses[0]


def test_an_allocation_that_fails_is_repeated():
    model, inputs = made(mlp)
    expected = model(*inputs)
    with offload(model, DEVICE, memory="1GiB", broker=False) as session, torch.no_grad():
        for _ in range(3):
            model(*inputs)
        session.movers[0].no_memory()
        close(model(*inputs), expected)
        assert session.stats()["out_of_memory"] == 1


def test_weights_of_the_store_are_copied_from_where_they_are():
    model, inputs = made(mlp)
    expected = model(*inputs)
    store = cotensor.Store()
    cotensor.torch.publish(model, "model", store)
    cotensor.torch.attach(model, "model", store)
    with offload(model, DEVICE, memory=memory_for(3 * LAYER_BYTES), broker=False) as session, torch.no_grad():
        for _ in range(4):
            close(model(*inputs), expected)
        stats = session.stats()
        assert stats["copies"] > LAYERS
        if DEVICE == "cuda":
            assert stats["staged_bytes"] == 0 and stats["locked_bytes"] >= LAYERS * LAYER_BYTES
    close(model(*inputs), expected)


PROGRAM = """
import sys, torch
from cotensor.tensorref import offload
device, memory = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).eval()
x = torch.randn(2, 256)
with torch.no_grad():
    expected = model(x)
    with offload(model, device, memory=memory, broker=True):
        for line in sys.stdin:
            for _ in range(int(line)):
                torch.testing.assert_close(model(x).cpu(), expected, rtol=1e-4, atol=1e-5)
            print("equal", flush=True)
"""


@pytest.mark.skipif(DEVICE == "simulated", reason="test_torch_tensorref_broker.py has these tests for the simulated device")
def test_two_programs_share_the_device():
    with serving() as daemon:
        environment = {**os.environ, "COTENSOR_SOCKET": str(daemon.socket)}
        command = [sys.executable, "-c", PROGRAM, DEVICE, str(3 << 19)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        programs = [subprocess.Popen(command, env=environment, **pipes) for _ in range(2)]
        try:
            for _ in range(3):
                for program in programs:
                    program.stdin.write("5\n")
                    program.stdin.flush()
                for program in programs:
                    assert program.stdout.readline() == "equal\n"
        finally:
            for program in programs:
                program.stdin.close()
                program.wait(60)
                program.stdout.close()
    assert [program.returncode for program in programs] == [0, 0]
