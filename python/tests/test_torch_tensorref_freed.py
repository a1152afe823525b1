"""Parameters that a program has freed, while a session goes on."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import STRATEGIES, X, check, mlp  # noqa: E402

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


def data(model, number):
    for parameter in model.parameters():
        parameter.data = parameter.data + 1


def assigned(model, number):
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()}, assign=True)


def converted(model, number):
    model.to(torch.float64 if number % 2 else torch.float32)


def swapped(model, number):
    with torch.no_grad():
        for parameter in model.parameters():
            torch.utils.swap_tensors(parameter, torch.nn.Parameter(parameter + 1))


def others(model, number):
    torch.nn.Linear(16, 16).to("simulated")(X.to("simulated"))


CHANGES = {"data": data, "assigned": assigned, "converted": converted, "swapped": swapped, "others": others}


@STRATEGIES
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_are_exchanged_take_their_numbers(change, devices, strategy):
    """Drivers count all weights and operations that there ever were."""
    simulated_device(count=devices)
    model = mlp(2)
    with offload(model, [f"simulated:{number}" for number in range(devices)], strategy=strategy) as session:

        def counts():
            return [[len(mover.weights.all), len(mover._operations)] for mover in session.movers]

        for number in range(60):
            CHANGES[change](model, number)
            y = model(X.to("simulated", model[0].weight.dtype))
            y.sum().backward()
            y = y.detach()
            if number == 29:
                before = counts()
        for (weights, operations), (weights_before, operations_before) in zip(counts(), before):
            assert weights == weights_before == before[0][0] < 32 and operations <= 1.5 * operations_before
    check(model, y, X.to(y.dtype))


SAVED = {
    "itself": lambda y, part: y * part,
    "view": lambda y, part: y * part.view(1, 16),
    "part": lambda y, part: y[:, :8] * part[4:12],
}


@STRATEGIES
@pytest.mark.parametrize("saved", SAVED)
def test_a_saved_weight_keeps_its_memory_when_its_number_is_taken(saved, strategy):
    """Its elements are not the first ones of their storage."""

    def program(model, x):
        model.part = torch.nn.Parameter(torch.arange(24.0)[8:])
        y = SAVED[saved](model(x), model.part)
        # It takes the number.
        model.part.data = torch.zeros(16)
        (x * model.part).sum().backward()
        y.sum().backward()
        return [one.grad for one in model.parameters()]

    model, plain = mlp(1), mlp(1)
    with offload(model, "simulated", strategy=strategy):
        found = program(model, X.to("simulated"))
    for one, other in zip(found, program(plain, X)):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_weights_that_are_announced_have_tensors():
    model = mlp(2)
    with offload(model, "simulated") as session:
        for _ in range(8):
            model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
            model.to("simulated")
        weights = session.movers[0].weights.all
        assert any([not weight.owners for weight in weights]) and len(weights) < 20
        session.announce([("linear", [f"{layer}.weight", f"{layer}.bias"], 10.0) for layer in range(2)])
        model[0](X.to("simulated"))
        assert set(session.forecast(1)[0].uses) == {"1.weight", "1.bias"}
