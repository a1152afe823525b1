"""The API of torch.TensorRef, as its document shows it. Each test is a program: importing the module changes torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tensorref_common import run_with_references  # noqa: E402

MEMORY = """
from cotensor.tensorref.simulated.memory import MEMORIES
memory = MEMORIES[0]
"""


def test_the_document():
    out = run_with_references("""
torchTensorRef.tensorsManager.device = "simulated"
hi = torch.rand(2, 3)
assert isinstance(hi, torch.Tensor) and isinstance(hi, torch.TensorRef)
assert type(hi.target) is torch.Tensor and hi.proxyInfo.device == "cpu"
before = hi.target.clone()
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
    run_with_references(f"""{MEMORY}
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
def test_a_factory_with_a_device_writes_to_a_result(strategy):
    """The program names the CPU, and is not told that its results are elsewhere."""
    run_with_references(f"""
torchTensorRef.tensorsManager.device = "simulated"
torchTensorRef.tensorsManager.strategy = {strategy!r}
start, end = torch.tensor(1.0), torch.tensor(3.0)
expected = torch.linspace(start, end, 5, device="cpu")
out = torch.ones(5) * 2
assert torch.linspace(start, end, 5, device="cpu", out=out) is out
assert out.tolist() == expected.tolist() == [1.0, 1.5, 2.0, 2.5, 3.0]
""")


@pytest.mark.parametrize("strategy", ["genoa", "flow"])
def test_a_network_trains(strategy):
    run_with_references(f"""{MEMORY}
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
model.double().float()
loss = train(model, torch.TensorRef(data))
assert abs(loss - expected) < 1e-6, (loss, expected)
for one, other in zip(model.parameters(), plain.parameters()):
    assert torch.allclose(one.target.cpu(), other, atol=1e-6)
assert memory.copies_in > 0
session = torchTensorRef.tensorsManager.session
assert session.stats()["copies"] > 0 or session.tensors.results_on_host, "parameters are weights of the session"
""")


@pytest.mark.parametrize("strategy", ["genoa", "flow"])
def test_operations_that_rebind_memory(strategy):
    run_with_references(f"torchTensorRef.tensorsManager.strategy = {strategy!r}" + """
import copy, io, pickle
torchTensorRef.tensorsManager.device = "simulated"
x = torch.arange(4.0)
made = torch.empty(0)
made.set_(x)
assert made.shape == (4,) and made.tolist() == [0, 1, 2, 3]
made.resize_(2).unsqueeze_(0)
assert made.shape == (1, 2) and (made + 1).tolist() == [[1, 2]]
file = io.BytesIO()
torch.save({"ref": x, "plain": x.target}, file)
file.seek(0)
loaded = torch.load(file)
for other in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x), *loaded.values()):
    assert isinstance(other, torch.TensorRef) and other.tolist() == [0, 1, 2, 3], other
assert loaded["ref"].data_ptr() == loaded["plain"].data_ptr(), "one storage"
module = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(3)])
for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
    assert len(list(copied.parameters())) == 6, "each parameter is copied once"
    for one, other in zip(module.parameters(), copied.parameters()):
        assert isinstance(other, torch.nn.Parameter) and isinstance(other, torch.TensorRef) and torch.equal(one, other)
x.note = "kept"
assert copy.deepcopy(x).note == "kept" and f"{x[1]:.2f}" == "1.00" and isinstance(x.size(), torch.Size)
data = torch.utils.data.TensorDataset(x)
assert [batch[0].tolist() for batch in torch.utils.data.DataLoader(data, batch_size=2, num_workers=1)] == [[0, 1], [2, 3]]
torchTensorRef.tensorsManager.strategy = "genoa"    # the lengths of the packed rows have to be on the CPU
packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 1), torch.tensor([3, 2]))
assert packed.data.shape == (5, 1)
""")


@pytest.mark.parametrize("strategy", ["genoa", "flow"])
def test_gradients_and_modes_of_code_in_cpp(strategy):
    run_with_references(f"""
from torch.utils.checkpoint import checkpoint
torchTensorRef.tensorsManager.strategy = {strategy!r}
torchTensorRef.tensorsManager.device = "simulated"
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2
def gradient_of(function):
    x = torch.ones(3, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()
twos = [2.0, 2.0, 2.0]
assert gradient_of(Twice.apply) == twos
assert gradient_of(lambda x: checkpoint(lambda y: y * 2, x, use_reentrant=True)) == twos
assert gradient_of(lambda x: checkpoint(lambda y: y * 2, x, use_reentrant=False)) == twos
assert torch.func.grad(lambda x: (x * x).sum())(torch.ones(3)).tolist() == twos
assert torch.func.jvp(lambda x: x * x, (torch.ones(3),), (torch.ones(3),))[1].tolist() == twos
assert torch.func.vmap(lambda x: x * 2)(torch.ones(3)).tolist() == twos
with torch.autocast("cpu", torch.bfloat16):
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
torchTensorRef.tensorsManager.device = None
torch.export.export(torch.nn.Linear(3, 2), (torch.ones(3),))
""")


def test_move_that_would_part_tensors_is_refused():
    run_with_references("""
import cotensor
def refused(function):
    try:
        function()
    except cotensor.ConflictError as error:
        return str(error)
    raise AssertionError("not refused")
torchTensorRef.tensorsManager.device = "simulated"
base = torch.zeros(4)
for other in (base.detach(), base.target, base.numpy()):
    refused(base.toGPU)
del other
view = base[:2]
refused(base.toGPU), refused(view.toGPU)
view.fill_(1)
del view
hooked = torch.ones(2, requires_grad=True)
hooked.register_hook(lambda gradient: gradient * 0)
assert "hooks" in refused(hooked.toGPU)
assert base.toGPU().tolist() == [1, 1, 0, 0] and base.device.type == "simulated"
for function in (lambda x: (x * x).sum(), torch.sum):
    weight = torch.ones(2, requires_grad=True)
    total = function(weight)
    # The move, or the backward pass after it.
    refused(lambda: (weight.toGPU(), total.backward()))
    assert weight.grad is None
weight = torch.ones(2, requires_grad=True)
(weight * weight).sum().backward()
assert weight.toGPU().grad.tolist() == [2, 2] and weight.grad.device.type == "simulated"
(weight * 3).sum().backward()
assert weight.grad.tolist() == [5, 5]
""")


def test_modules_of_references_are_published():
    run_with_references("""
import cotensor, cotensor.torch
torchTensorRef.tensorsManager.device = "simulated"
one, other, x = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2), torch.ones(3)
want = one(x).tolist()
with cotensor.Store() as store:
    cotensor.torch.publish(one, "m", store)
    cotensor.torch.attach(other, "m", store)
    assert one(x).tolist() == other(x).tolist() == want
    assert isinstance(other.weight, torch.TensorRef)
""")


def test_eject_and_missing_device():
    run_with_references("""
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
