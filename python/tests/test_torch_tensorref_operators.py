"""Operators of ATen that the program calls, or that a dispatch mode runs, and functions that name a device."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from cotensor.tensorref import offload  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")

aten = torch.ops.aten
X = torch.linspace(-1, 1, 12).reshape(3, 4)
#: And the share of new statistics, and what is added to variances.
TRAINING = (True, 0.5, 1e-5)
PLACES = [("flow", "1MiB"), ("genoa", "1MiB"), ("lru", "1MiB"), ("flow", 1), ("genoa", 1), ("cpu", "1MiB")]
places = pytest.mark.parametrize(("strategy", "room"), PLACES)

OPERATORS = {
    "statistics": lambda model, x: aten.native_batch_norm.default(x, None, None, *model.buffers(), *TRAINING)[0],
    "written statistics": lambda model, x: aten._native_batch_norm_legit.default(x, None, None, *model.buffers(), *TRAINING)[0],
    "detach": lambda model, x: aten.mul_.Tensor(aten.detach.default(model.weight), x[0]),
    "packet": lambda model, x: aten.add_(model.weight.detach(), x[0]),
    "copy": lambda model, x: aten.copy_.default(model.weight.detach(), x[0]),
    "like": lambda model, x: aten.ones_like.default(model.weight),
}


class Passes(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def model():
    norm = torch.nn.BatchNorm1d(4)
    del norm.num_batches_tracked
    return norm


@places
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operators_are_known_by_their_functions(name, strategy, room):
    def run(model, x):
        result = OPERATORS[name](model, x)
        assert result.device == x.device
        return [tensor.detach().cpu() for tensor in (result, *[one + 0 for one in [*model.parameters(), *model.buffers()]])]

    offloaded = model()
    with offload(offloaded, "simulated", strategy=strategy, memory=room):
        found = run(offloaded, X.to("simulated"))
    assert all([torch.equal(one, other) for one, other in zip(found, run(model(), X))])
    assert all([torch.equal(one, other) for one, other in zip(found[1:], offloaded.state_dict().values())])


@places
@pytest.mark.parametrize("mode", [Passes, lambda: FlopCounterMode(display=False)])
@pytest.mark.parametrize("whole", [True, False])
def test_dispatch_modes_change_no_gradients(whole, mode, strategy, room):
    """They run the operators of the backward pass themselves."""

    def run(model, x):
        with mode() if whole else contextlib.nullcontext():
            y = model[1](model[0](x)) * torch.cumprod(model[1].weight[:1], 0)
            parts = [y, torch.cumprod(model[2].weight, 0), torch.linalg.diagonal(model[0].weight)]
            gradients = [torch.full_like(part, 0.5) for part in parts]
            for _ in range(2):
                with contextlib.nullcontext() if whole else mode():
                    torch.autograd.backward(parts, gradients, retain_graph=True)
        return [y.detach().cpu(), *[parameter.grad for parameter in model.parameters()]]

    def layers():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.PReLU())

    offloaded, expected = layers(), run(layers(), X)
    with offload(offloaded, "simulated", strategy=strategy, memory=room):
        found = run(offloaded, X.to("simulated"))
    for one, other in zip(found, expected):
        assert one.is_cpu
        torch.testing.assert_close(one, other)


@places
def test_functions_that_name_the_host_leave_their_result_there(strategy, room):
    with offload(model(), "simulated", strategy=strategy, memory=room) as session, torch.no_grad():
        weight = session.models[0].weight
        for result in (
            torch.asarray(weight, device="cpu", dtype=torch.float64, requires_grad=False),
            aten._to_copy.default(weight, device=torch.device("cpu")),
        ):
            assert result.device.type == "cpu" and (result + torch.ones(4)).tolist() == [2.0] * 4
