"""Writes that only the schema of an operator shows, and those by an address that C++ gives out."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import STRATEGIES, X, mlp  # noqa: E402

from cotensor.tensorref import offload  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")

ROOMS = pytest.mark.parametrize("room", ["1MiB", 1])
#: Arguments that an operator of a program writes, as extensions for GPUs do: PyTorch gives them no new version.
SCHEMAS = {
    "first": ("(Tensor(a!) x, Tensor y) -> ()", lambda op, x, y: op(x, y)),
    "by name": ("(Tensor(a!) x, Tensor y) -> ()", lambda op, x, y: op(y=y, x=x)),
    "second": ("(Tensor y, Tensor(a!) x) -> Tensor", lambda op, x, y: op(y, x)),
    "keyword": ("(Tensor y, *, Tensor(a!) x) -> Tensor", lambda op, x, y: op(y, x=x)),
    "list": ("(Tensor y, Tensor(a!)[] x) -> ()", lambda op, x, y: op(y, [x])),
    "optional": ("(Tensor y, Tensor(a!)? x=None) -> ()", lambda op, x, y: op(y, x)),
    # Names that PyTorch has, for something else.
    "view": ("(Tensor y, Tensor(a!) x) -> ()", lambda op, x, y: op(y, x)),
    "size": ("(Tensor(a!) x, Tensor y) -> ()", lambda op, x, y: op(x, y)),
    "scale_": ("(Tensor y, Tensor(a!) x) -> ()", lambda op, x, y: op(y, x)),
}


def _add(*values, **named):
    """Adds the vector among its arguments to the matrix, which may be in a list."""
    given = [value[0] if isinstance(value, list) else value for value in (*values, *named.values())]
    x, y = sorted(given, key=lambda value: -value.dim())
    x.add_(y)
    return y * 2


def _add_only(*values, **named):
    _add(*values, **named)


@pytest.fixture(scope="module")
def operators():
    library = torch.library.Library("cotensor_test", "DEF")
    for name, (schema, _) in SCHEMAS.items():
        library.define(name.replace(" ", "_") + schema)
        library.impl(name.replace(" ", "_"), _add if "-> Tensor" in schema else _add_only, "CPU")
    yield torch.ops.cotensor_test
    library._destroy()


@ROOMS
@STRATEGIES
@pytest.mark.parametrize("overload", [False, True], ids=["operator", "overload"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_write_of_an_operator_is_seen(name, overload, strategy, room, operators):
    model = mlp(1)
    before, y = model[0].weight.detach().clone(), torch.full((16,), 2.0)
    operator = getattr(operators, name.replace(" ", "_"))
    with offload(model, "simulated", strategy=strategy, memory=room), torch.no_grad():
        for _ in range(3):
            first = model(X.to("simulated"))
        SCHEMAS[name][1](operator.default if overload else operator, model[0].weight, y.to("simulated"))
        second = model(X.to("simulated"))
    assert torch.equal(model[0].weight, before + 2)
    torch.testing.assert_close(second.cpu(), model(X).detach(), rtol=1e-6, atol=1e-6)
    assert not torch.equal(first.cpu(), second.cpu())


class Moments(torch.nn.Module):
    """A weight with the state of its optimizer in buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.rand(16, 16))
        self.register_buffer("mean", torch.rand(16, 16))
        self.register_buffer("variance", torch.rand(16, 16))
        self.register_buffer("steps", torch.ones(()))

    def forward(self, x):
        return x @ self.weight + (x @ self.mean) * (x @ self.variance) + self.steps

    def step(self, parameter, gradient):
        torch._fused_adam_(
            [parameter], [gradient], [self.mean], [self.variance], [], [self.steps], lr=0.1, beta1=0.9, beta2=0.99,
            weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )


@ROOMS
@STRATEGIES
@pytest.mark.parametrize("of_device", [False, True], ids=["weight", "tensor of the device"])
def test_moments_that_a_fused_step_writes_are_seen(of_device, strategy, room):
    model, expected, gradient, other = Moments(), Moments(), torch.rand(16, 16), torch.rand(16, 16)
    with torch.no_grad():
        expected.step(other.clone() if of_device else expected.weight, gradient)
        with offload(model, "simulated", strategy=strategy, memory=room):
            for _ in range(3):
                model(X.to("simulated"))
            parameter = other.to("simulated") if of_device else model.weight
            model.step(parameter, gradient.to("simulated"))
            found = model(X.to("simulated"))
        for one, two in zip(model.state_dict().values(), expected.state_dict().values()):
            torch.testing.assert_close(one, two)
        torch.testing.assert_close(found.cpu(), expected(X), rtol=1e-5, atol=1e-5)


CAPSULES = {
    "torch": lambda tensor: torch.to_dlpack(tensor),
    "torch.utils": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "versioned": lambda tensor: torch._C._to_dlpack_versioned(tensor),
    "method": lambda tensor: tensor.detach().__dlpack__(),
}


@ROOMS
@STRATEGIES
@pytest.mark.parametrize("capsule", sorted(CAPSULES))
def test_a_write_through_a_capsule_is_seen(capsule, strategy, room):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy, memory=room), torch.no_grad():
        model(X.to("simulated"))
        made = CAPSULES[capsule](model[0].weight)
        # What gets the capsule writes without PyTorch.
        with torch._C.DisableTorchFunction():
            alias = torch.utils.dlpack.from_dlpack(made)
        for value in (2.0, 3.0):
            with torch._C.DisableTorchFunction():
                alias.fill_(value)
            y = model(X.to("simulated"))
            assert (model[0].weight.cpu() == value).all()
            torch.testing.assert_close(y.cpu(), torch.nn.functional.linear(X, torch.full((16, 16), value), model[0].bias.cpu()))
    assert torch.to_dlpack is torch._C._to_dlpack, "the functions of PyTorch are back"


@STRATEGIES
def test_a_write_through_a_capsule_of_another_thread_is_seen(strategy):
    model = mlp(1)
    # The thread is older than the block, so that it is in no session.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        with offload(model, "simulated", strategy=strategy), torch.no_grad():
            model(X.to("simulated"))
            made = pool.submit(torch.to_dlpack, model[0].weight).result()
            with torch._C.DisableTorchFunction():
                torch.utils.dlpack.from_dlpack(made).fill_(2.0)
            y = model(X.to("simulated"))
    torch.testing.assert_close(y.cpu(), model(X).detach(), rtol=1e-5, atol=1e-5)


@STRATEGIES
def test_an_operator_that_writes_much_takes_no_memory_for_copies(strategy, operators, memory):
    model, y = mlp(1), torch.full((16,), 2.0)
    cache = torch.zeros(1 << 16, 16, device="simulated")
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        model(X.to("simulated"))
        memory.reset()
        before = memory.allocated_bytes
        operators.first(cache, y.to("simulated"))
        assert memory.peak_bytes - before < cache.nbytes
    assert (cache.cpu() == 2).all()


@STRATEGIES
@pytest.mark.parametrize("name", ["apply_", "map_"])
def test_writes_by_functions_of_python_are_seen(name, strategy):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        model(X)
        weight = model[0].weight.detach()
        weight.apply_(lambda value: 0.5) if name == "apply_" else weight.map_(torch.zeros(16, 16), lambda value, other: 0.5)
        found = model(X)
    assert (model[0].weight == 0.5).all()
    torch.testing.assert_close(found.cpu(), model(X).detach(), rtol=1e-6, atol=1e-6)


#: A weight of four elements gets more, from its address on.
GROWS = {
    "set_": lambda weight, flat: weight.set_(flat),
    "operator": lambda weight, flat: torch.ops.aten.set_.source_Tensor(weight, flat),
    "resize_": lambda weight, flat: weight.resize_(8),
    "resize_as_": lambda weight, flat: weight.resize_as_(flat),
    "as_strided_": lambda weight, flat: weight.as_strided_((8,), (1,), 0),
    "data": lambda weight, flat: setattr(weight, "data", flat),
}


@STRATEGIES
@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize("change", GROWS)
def test_a_weight_may_grow_from_its_address_on(change, sessions, strategy):
    def program(model):
        with torch.no_grad():
            results = [model.weight * 1]
            GROWS[change](model.weight, model.flat)
            return [*results, model.weight * 1, model.weight.view(2, 4) * 1, model.other * model.weight[:4]]

    def made():
        model = torch.nn.Module()
        model.flat = torch.arange(8.0)
        model.weight = torch.nn.Parameter(model.flat[:4], requires_grad=False)
        model.other = torch.nn.Parameter(torch.ones(4))
        return model

    model = made()
    with contextlib.ExitStack() as stack:
        for _ in range(sessions):
            stack.enter_context(offload(model, "simulated", strategy=strategy))
        found = program(model)
        assert {one.device.type for one in found} == {"simulated"}
    for one, other in zip(found, program(made())):
        torch.testing.assert_close(one.cpu(), other)


@STRATEGIES
def test_addresses_that_are_written_no_more_are_forgotten(strategy):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy) as session, torch.no_grad():
        alias = model[0].bias.numpy()
        model(X)
        session.invalidate()
        alias[:] = 1
        assert torch.equal(model[0].bias.clone().cpu(), torch.ones(16))
        session.invalidate(written_by_address=False)
        model(X)
        copies = session.stats()["copies"]
        model(X)
        assert session.stats()["copies"] == copies or strategy == "genoa"
        # The next address is one that the program may write.
        model[0].bias.numpy()[:] = 2
        assert torch.equal(model[0].bias.clone().cpu(), torch.full((16,), 2.0))
