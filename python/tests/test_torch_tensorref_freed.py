"""Parameters that a program has freed, while a session goes on."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import STRATEGIES, X, mlp  # noqa: E402

from cotensor.tensorref import offload, simulated_device  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")


@STRATEGIES
@pytest.mark.parametrize("devices", [1, 2])
def test_parameters_that_a_program_has_freed_are_freed(devices, strategy):
    simulated_device(count=devices)
    model, given = mlp(1), mlp(1, seed=1).state_dict()
    with offload(model, [f"simulated:{number}" for number in range(devices)], strategy=strategy) as session:
        former, others = [], []
        for number in range(20):
            model.load_state_dict({name: tensor + number for name, tensor in given.items()}, assign=True)
            other = torch.nn.Linear(16, 16).to("simulated")
            other(model(X.to("simulated"))).sum().backward()
            former.append(weakref.ref(model[0].weight))
            others.append(weakref.ref(other.weight))
        gc.collect()
        assert sum([one() is not None for one in former]) < 5 and sum([one() is not None for one in others]) < 5
        assert len(session.tensors.weights.owners) < 16 and former[-1]() is model[0].weight
        torch.testing.assert_close(model[0].bias.cpu(), given["0.bias"] + 19)


@STRATEGIES
def test_what_a_program_has_of_a_freed_parameter_stays_on_the_device(strategy):
    with offload(mlp(1), "simulated", strategy=strategy):
        other = torch.nn.Linear(16, 16).to("simulated").requires_grad_(False)
        x = X.to("simulated").requires_grad_()
        y, view, expected = other(x), other.weight[1:], other.weight.sum(0).expand(3, 16)
        del other
        for _ in range(20):
            torch.nn.Linear(16, 16).to("simulated")(x.detach())
        assert view.device.type == (view * 2).device.type == "simulated"
        y.sum().backward()
        torch.testing.assert_close(x.grad, expected, check_device=False)
