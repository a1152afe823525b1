"""The API of torch.TensorRef, as its document shows it. Each test is a program: importing the module changes torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

START = """
from cotensor.tensorref import simulated_device
memory = simulated_device().memory
import torchTensorRef
import torch
"""


def run(program):
    ran = subprocess.run([sys.executable, "-c", START + program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_document():
    out = run("""
torchTensorRef.tensorsManager.device = "simulated"
hi = torch.rand(2, 3)
assert isinstance(hi, torch.Tensor) and isinstance(hi, torch.TensorRef)
assert type(hi.target) is torch.Tensor and hi.proxyInfo.device == "cpu"
before = hi.target
assert hi.toGPU() is hi
assert hi.proxyInfo.device == "simulated:0" and hi.device.type == "simulated"
hi.toCPU()
assert hi.proxyInfo.device == "cpu" and torch.equal(hi.target, before)
assert hi.dtype == torch.float32 and hi.shape == (2, 3)
print(hi)
""")
    assert out.startswith("tensor([[") and "TensorRef" not in out


@pytest.mark.parametrize("strategy", ["genoa", "flow"])
def test_operations_run_on_the_device(strategy):
    run(f"""
manager = torchTensorRef.tensorsManager
manager.strategy = {strategy!r}
a, b = torch.arange(6.0).reshape(2, 3), torch.ones(3)
plain = a.target + 1
assert memory.copies_in == 0
manager.device = "simulated"
c = a + b
assert isinstance(c, torch.TensorRef) and memory.copies_in >= 1
assert c.proxyInfo.device == ("cpu" if {strategy!r} == "genoa" else "simulated:0")
assert torch.equal(c.toCPU().target, plain)
b.toGPU()
d = (a * b).sum(0).relu()                       # on two devices
assert d.tolist() == [3.0, 5.0, 7.0]
a[0, 0] = 9
a += 1
assert a.tolist() == [[10.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
assert sum(manager.devices().values()) > 0 and any(ref is a for ref in manager.tensors())
""")


@pytest.mark.parametrize("strategy", ["genoa", "flow"])
def test_a_network_trains(strategy):
    run(f"""
import copy
torchTensorRef.eject()
torch.manual_seed(0)
class RNN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(7, 4), torch.nn.Linear(4, 2)
    def forward(self, x):
        h = torch.zeros(x.shape[1], 4)
        for step in x:
            h = torch.tanh(self.hidden(torch.cat([step, h], 1)))
        return self.out(h)
def train(model, x):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()
plain = RNN()
weights = {{name: value.clone() for name, value in plain.state_dict().items()}}
data = torch.rand(5, 3, 3)
expected = train(plain, data)
torchTensorRef.inject()
torchTensorRef.tensorsManager.strategy = {strategy!r}
torchTensorRef.tensorsManager.device = "simulated"
model = RNN()
assert all(isinstance(p, torch.nn.Parameter) and isinstance(p, torch.TensorRef) for p in model.parameters())
model.load_state_dict(weights)
loss = train(model, torch.TensorRef(data))
assert abs(loss - expected) < 1e-6, (loss, expected)
for one, other in zip(model.parameters(), plain.parameters()):
    assert torch.allclose(one.target.cpu(), other, atol=1e-6)
assert memory.copies_in > 0
""")


def test_eject_and_missing_device():
    run("""
ref = torch.ones(2)
try:
    ref.toGPU()
except RuntimeError as error:
    assert "tensorsManager.device" in str(error)
else:
    raise AssertionError
torchTensorRef.eject()
assert type(torch.ones(2)) is torch.Tensor and not hasattr(torch, "TensorRef")
assert (ref + 1).tolist() == [2.0, 2.0]
""")
