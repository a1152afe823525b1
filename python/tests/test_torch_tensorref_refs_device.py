"""References of a program with a device: what leaves the program (exports, pickles, copies) and what runs in C++."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tensorref_common import run_with_references  # noqa: E402

STRATEGIES = pytest.mark.parametrize("strategy", ["genoa", "flow"])
START = """
torchTensorRef.tensorsManager.strategy = {strategy!r}
torchTensorRef.tensorsManager.device = "simulated"
"""


@STRATEGIES
def test_a_module_is_exported(strategy):
    run_with_references(START.format(strategy=strategy) + """
module, x = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3)
want = module(x).tolist()
for strict in (False, True):
    program = torch.export.export(module, (x,), strict=strict)
    assert program.module()(x).tolist() == want
    assert {str(tensor.device) for tensor in program.state_dict.values()} == {"cpu"}
assert module(x).tolist() == want, "the session goes on"
""")


@STRATEGIES
def test_sequences_of_several_lengths(strategy):
    run_with_references(START.format(strategy=strategy) + """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pack_sequence
torch.manual_seed(0)
layer, x = torch.nn.RNN(2, 4, batch_first=True), torch.rand(2, 3, 2)
def outputs():
    found = []
    for lengths in (torch.tensor([2, 3]), [2, 3], torch.tensor([1, 2]) + 1):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        assert str(packed.batch_sizes.device) == "cpu", packed.batch_sizes.device
        result, state = layer(packed)
        padded, sizes = pad_packed_sequence(result, batch_first=True)
        padded.sum().backward()
        found += [padded.tolist(), state.tolist(), sizes.tolist(), layer.weight_hh_l0.grad.tolist()]
        layer.zero_grad()
    found.append(pack_sequence([x[0], x[1, :2]]).data.tolist())
    return found
on_device = outputs()
torchTensorRef.tensorsManager.device = None
assert outputs() == on_device
""")


@STRATEGIES
def test_moved_references_are_pickled_and_copied(strategy):
    run_with_references(START.format(strategy=strategy) + """
import copy, io, pickle
import cotensor
x = torch.arange(4.0)
x.toGPU()
x.note = "kept"
weight = torch.nn.Parameter(torch.ones(2))
weight.toGPU()
file = io.BytesIO()
torch.save([x, weight], file)
file.seek(0)
loaded = torch.load(file, weights_only=False)
pairs = pickle.loads(pickle.dumps([x, weight])), copy.deepcopy([x, weight]), [copy.copy(x), copy.copy(weight)], loaded
def refused(move):
    try:
        move()
    except cotensor.ConflictError:
        return True
for want, others in zip((x, weight), zip(*pairs)):
    for number, other in enumerate(others):
        assert type(other) is type(want) and isinstance(other, torch.TensorRef), type(other)
        assert isinstance(other, torch.nn.Parameter) == isinstance(want, torch.nn.Parameter)
        assert other.proxyInfo.device == "simulated:0" and other.requires_grad == want.requires_grad
        assert other.tolist() == want.tolist()
        assert (other * 2).tolist() == (want * 2).tolist()
        if number == 2:
            assert refused(other.toCPU), "`copy` has the elements of the other"
        else:
            assert other.toCPU().tolist() == want.tolist(), "it moves on its own"
        assert want.proxyInfo.device == "simulated:0"
module = torch.nn.Linear(2, 2)
for parameter in module.parameters():
    parameter.toGPU()
for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
    assert copied(torch.ones(2)).tolist() == module(torch.ones(2)).tolist()
    assert {parameter.proxyInfo.device for parameter in copied.parameters()} == {"simulated:0"}
""")


@STRATEGIES
def test_scripted_functions_of_references(strategy):
    run_with_references(START.format(strategy=strategy) + """
def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).relu() + 1
script = torch.jit.script(scaled)
for moved in (False, True):
    x, y = torch.arange(4.0), torch.ones(4)
    want = scaled(x, y).tolist()
    if moved:
        x.toGPU(), y.toGPU()
    x.requires_grad_()
    result = script(x, y)
    assert result.tolist() == want
    (result * 2).sum().backward()
    assert x.grad.tolist() == [0, 2, 2, 2], x.grad
    assert (result + x).tolist() == [1, 3, 5, 7]
class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(x).relu()
module = Module()
torchTensorRef.tensorsManager.device = None
scripted = torch.jit.script(module)
torchTensorRef.tensorsManager.device = "simulated"
assert scripted(torch.ones(4)).tolist() == module(torch.ones(4)).tolist()
""")
