"""Functions that return a view of an argument: the program gets a view of its own tensor, wherever the function runs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cotensor.tensorref import offload, simulated_device  # noqa: E402
from cotensor.tensorref.arguments import to_device  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")

#: Where operations run: by the strategy, or on the host for want of memory.
PLACES = [("flow", "1MiB"), ("genoa", "1MiB"), ("lru", "1MiB"), ("flow", 1), ("genoa", 1), ("cpu", "1MiB")]
places = pytest.mark.parametrize(("strategy", "room"), PLACES)

VIEWS = {
    "atleast_3d": lambda weight, x: torch.atleast_3d(weight),
    "diagonal": lambda weight, x: torch.linalg.diagonal(weight),
    "unfold": lambda weight, x: weight.unfold(0, 2, 1),
    "slice": lambda weight, x: torch.ops.aten.slice.Tensor(weight, 0, 0, 2),
    "view_as": lambda weight, x: weight.view_as(x),
    "list": lambda weight, x: torch.meshgrid(weight[0], x[0], indexing="ij")[0],
}


@pytest.fixture(autouse=True)
def device():
    simulated_device()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(16.0).reshape(4, 4))
        self.empty = torch.nn.Parameter(torch.ones(0, 4))
        self.scalar = torch.nn.Parameter(torch.tensor(2.0))


@places
@pytest.mark.parametrize("view", sorted(VIEWS))
def test_write_to_a_view_of_a_weight_is_an_error(view, strategy, room):
    model = Model()
    with offload(model, "simulated", strategy=strategy, memory=room):
        part = VIEWS[view](model.weight, torch.ones(4, 4).to("simulated"))
        assert part.device.type == "simulated" and part.requires_grad
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
            part.mul_(2)


@places
@pytest.mark.parametrize("view", sorted(set(VIEWS) - {"list"}))
def test_write_to_a_view_is_a_write_to_the_weight(view, strategy, room):
    model, expected = Model(), Model()
    with torch.no_grad():
        VIEWS[view](expected.weight, torch.ones(4, 4)).mul_(2)
        with offload(model, "simulated", strategy=strategy, memory=room):
            VIEWS[view](model.weight, torch.ones(4, 4).to("simulated")).mul_(2)
            read = (model.weight + 0).cpu()
    assert torch.equal(model.weight, expected.weight) and torch.equal(read, expected.weight)


@places
def test_copies_of_parts_of_a_weight_are_on_the_device(strategy, room):
    with offload(Model(), "simulated", strategy=strategy, memory=room) as session:
        weight = session.models[0].weight
        for part in (weight[:, [0, 2]], weight.t().reshape(16), weight.t().flatten()):
            assert part.device.type == "simulated"
            assert part.is_cpu is False


@places
def test_parts_without_elements_show_the_device(strategy, room):
    model = Model()
    with offload(model, "simulated", strategy=strategy, memory=room):
        assert model.empty.view(4, 0).device.type == "simulated"
        assert [part.device.type for part in model.empty.t().unbind()] == ["simulated"] * 4


@places
def test_write_to_a_conjugate_without_elements_is_an_error(strategy, room):
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(0, 4, dtype=torch.complex64))])
    with offload(model, "simulated", strategy=strategy, memory=room):
        part = model[0].conj()
        assert part.device.type == "simulated"
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
            part.mul_(2)


@places
def test_copies_of_conjugates_are_conjugates(strategy, room):
    """Products of conjugates round differently than those of their elements."""

    def run(model, x):
        result = (model[0] * x).mH @ x[:3].outer(x).mT
        result.abs().sum().backward()
        return result.detach().cpu(), model[0].grad

    def model():
        return torch.nn.ParameterList([torch.nn.Parameter(torch.polar(torch.ones(8, 8), torch.linspace(0, 9, 64).reshape(8, 8)))])

    x = torch.polar(torch.linspace(1, 2, 8), torch.linspace(3, 4, 8))
    offloaded = model()
    with offload(offloaded, "simulated", strategy=strategy, memory=room):
        found = run(offloaded, x.to("simulated"))
    assert all([torch.equal(one, other) for one, other in zip(found, run(model(), x))])


def test_a_copy_of_a_conjugate_has_its_strides_and_its_bit():
    x = torch.polar(torch.ones(2, 3), torch.linspace(0, 9, 6).reshape(2, 3)).mH
    copy = to_device(x, torch.device("simulated"))
    assert copy.is_conj() and copy.stride() == (1, 3) and not copy._is_view() and torch.equal(copy.cpu(), x)


@places
def test_factories_take_tensors_as_numbers(strategy, room):
    model = Model()
    with torch.no_grad(), offload(model, "simulated", strategy=strategy, memory=room):
        end = torch.tensor(4.0).to("simulated")
        assert torch.linspace(model.scalar, end, 3).device.type == "cpu"
        assert torch.linspace(model.scalar, end, 3, device="simulated").tolist() == [2.0, 3.0, 4.0]
        assert torch.arange(end).device.type == "cpu"


@places
def test_write_to_a_tensor_of_the_host_keeps_it_there(strategy, room):
    model = Model()
    with torch.no_grad(), offload(model, "simulated", strategy=strategy, memory=room):
        copy = model.weight.to("cpu")
        assert copy.mul_(2) is copy
        assert copy.device.type == "cpu" and torch.equal(copy, torch.arange(0.0, 32, 2).reshape(4, 4))


@places
def test_broadcast_tensors_shows_the_device(strategy, room):
    model = Model()
    with offload(model, "simulated", strategy=strategy, memory=room):
        others = [torch.ones(4).to("simulated"), torch.ones(1).to("simulated") + 1]
        assert [one.device.type for one in torch.broadcast_tensors(model.weight, *others)] == ["simulated"] * 3


@places
def test_gradient_that_is_none_stays_none(strategy, room):
    def gradients(model, tau, other):
        torch.ormqr(model.weight[:, :0], tau, other).sum().backward()
        return model.weight.grad, tau.grad

    tau, other = torch.ones(0), torch.ones(4, 4)
    expected = gradients(Model(), tau.clone().requires_grad_(), other)
    model = Model()
    with offload(model, "simulated", strategy=strategy, memory=room):
        found = gradients(model, tau.to("simulated").requires_grad_(), other.to("simulated"))
    assert [one is None for one in found] == [one is None for one in expected]
