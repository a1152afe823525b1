"""Models and torch tensors as arguments and results of functions."""

from __future__ import annotations

from typing import Iterator

import pytest

torch = pytest.importorskip("torch")

from functions_common import Program, providing  # noqa: E402

from cotensor import errors  # noqa: E402
from cotensor.client import SharedTensorClient  # noqa: E402
from cotensor.functions import RemoteObject  # noqa: E402

FUNCTIONS = """
import torch
from torch import nn

class SimpleNet(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.fc1 = nn.Linear(sizes[0], sizes[1])
        self.fc2 = nn.Linear(sizes[1], sizes[2])

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))

@provider.share(name="torch.create_model", managed=True)
def create_model(*sizes):
    torch.manual_seed(0)
    return SimpleNet(sizes).eval()

@provider.share(name="torch.loose_model")
def loose_model():
    return nn.Linear(2, 2)

@provider.share(name="torch.models")
def models():
    return {"deep": [nn.Linear(2, 2)]}

@provider.share(name="torch.parameter")
def parameter(model, name):
    return getattr(model, name).detach()

@provider.share(name="torch.inference")
def inference(model, x):
    with torch.no_grad():
        return model(x)

@provider.share(name="torch.kinds")
def kinds(x):
    return type(x["x"]).__name__, str(x["x"].dtype), list(x["x"].shape)

@provider.share(name="torch.many")
def many(x):
    return {"list": [x, x + 1], "deep": ({"x": x.T},)}

@provider.share(name="torch.write")
def write(x):
    x += 1
    return x
"""


@pytest.fixture(scope="module")
def provider(daemon) -> Iterator[Program]:
    with providing(daemon.socket, FUNCTIONS) as running:
        yield running


@pytest.fixture
def client(daemon, provider) -> Iterator[SharedTensorClient]:
    with SharedTensorClient(socket=daemon.socket, retry_count=0) as opened:
        yield opened


def test_model_is_a_remote_object(client):
    x = torch.randn(3, 8)
    with client.call_function("torch.create_model", [8, 16, 4]) as model:
        assert isinstance(model, RemoteObject)
        torch.manual_seed(0)
        layers = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        with torch.no_grad():
            wanted = layers[1](torch.relu(layers[0](x)))
        results = client.call_function("torch.inference", [model, x]), model(x), model.forward(x)
        for result in results:
            assert isinstance(result, torch.Tensor) and torch.equal(result.detach(), wanted)
        # A method that returns the object itself gives another reference to it.
        with model.half() as same:
            assert isinstance(same, RemoteObject) and same.id != model.id
        assert client.call_function("torch.inference", [model, x.half()]).dtype == torch.float16


def test_returned_model_is_a_remote_object(client):
    x = torch.randn(3, 2)
    model = client.call_function("torch.loose_model")
    assert isinstance(model, RemoteObject)
    result = client.call_function("torch.inference", [model, x])
    with torch.no_grad():
        weight, bias = (client.call_function("torch.parameter", [model, name]) for name in ("weight", "bias"))
        assert torch.allclose(result, torch.nn.functional.linear(x, weight, bias))
    with client.call_function("torch.models")["deep"][0] as within:
        assert isinstance(within, RemoteObject) and isinstance(within.eval(), RemoteObject)
    with pytest.raises(errors.UnsupportedError, match="Linear does not cross processes.*managed=True.*publish"):
        client.call_function("torch.inference", [torch.nn.Linear(2, 2), x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_functions_get_torch_tensors(client, dtype):
    x = torch.arange(12).reshape(3, 4).to(dtype)
    assert client.call_function("torch.kinds", [{"x": x}]) == ("Tensor", str(dtype), [3, 4])
    back = client.call_function("torch.many", [torch.ones(2, 3)])
    assert torch.equal(back["list"][1], torch.full((2, 3), 2.0)) and back["deep"][0]["x"].shape == (3, 2)


def test_writes_into_an_argument_are_private(client):
    x = client.store.put("torch/x", torch.zeros(1000))
    assert torch.equal(client.call_function("torch.write", [x]), torch.ones(1000))
    assert torch.equal(x.torch(), torch.zeros(1000))


def test_results_have_no_gradients(client):
    x = torch.ones(3, requires_grad=True)
    back = client.call_function("torch.many", [x])["list"][0]
    assert torch.equal(back, x.detach()) and not back.requires_grad


def test_arena_memory_is_correct_after_reuse(daemon, client):
    """Provider and client write in place. Each writes private pages, which later calls do not show."""
    kept = []
    with daemon.connect() as store:
        before = store.get_stats()
    for number in range(200):
        x = torch.full((10_000,), float(number))
        result = client.call_function("torch.write", [x])
        assert torch.equal(result, x + 1) and torch.equal(x, torch.full_like(x, number)), number
        if number % 20 == 0:
            kept.append((number, result))
        else:
            result.mul_(-1)
        with_odd_strides = torch.arange(float(number), number + 20.0).reshape(4, 5).T
        assert torch.equal(client.call_function("torch.write", [with_odd_strides]), with_odd_strides + 1)
    assert all(torch.equal(result, torch.full((10_000,), number + 1.0)) for number, result in kept)
    with daemon.connect() as store:
        after = store.get_stats()
    for figure in ("memory_usage_bytes", "total_tensors"):
        assert after[figure] == before[figure], "calls through the arena leave no tensor in the daemon"
