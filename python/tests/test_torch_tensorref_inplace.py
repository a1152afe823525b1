"""In-place operations on results and on saved tensors, with weights on the device and on the host."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import X, mlp  # noqa: E402

from cotensor.tensorref import Middleware, offload, simulated_device  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")

#: Where operations run: by the strategy, or on the host for want of memory.
PLACES = [("flow", "1MiB"), ("genoa", "1MiB"), ("lru", "1MiB"), ("pinned", "1MiB"), ("flow", 1), ("genoa", 1), ("cpu", "1MiB")]


def index_copy(y, p):
    return y.index_copy_(1, torch.arange(16, device=y.device), p.expand(3, 16))


WRITES = {
    "add_": lambda y, p: y.add_(p),
    "operator": lambda y, p: y.__iadd__(p),
    "copy_": lambda y, p: y.copy_(p),
    "slice": lambda y, p: y[0].mul_(p),
    "setitem": lambda y, p: y.__setitem__(1, p),
    "index_copy_": index_copy,
    "out": lambda y, p: torch.add(y.detach(), p.detach(), out=y.detach()),
    "addcmul_": lambda y, p: y.addcmul_(p, p),
    "foreach": lambda y, p: torch._foreach_add_([y], [p]),
}


class OnHost(Middleware):
    """Runs each operation with weights on the host."""

    def __str__(self):
        # The same in all processes of the tests.
        return "on host"

    def before_operation(self, operation):
        return "host"


@pytest.mark.parametrize(("strategy", "room"), [*PLACES, ("flow", OnHost()), ("genoa", OnHost())], ids=str)
@pytest.mark.parametrize("write", sorted(WRITES))
def test_writes_to_results_stay(write, strategy, room):
    def run(model, x):
        p = model[1].bias
        y = model[0](x) * 1.0
        result = WRITES[write](y, p)
        assert not isinstance(result, torch.Tensor) or write in ("out", "slice") or result is y
        (y.sin() * 2).sum().backward()
        return y.detach().cpu(), [one.grad for one in model[:2].parameters()]

    expected, gradients = run(mlp(2), X.clone())
    model = mlp(2)
    directed = isinstance(room, OnHost)
    with offload(model, "simulated", strategy=strategy, memory="1MiB" if directed else room) as session:
        if directed:
            session.use(room)
        found, grads = run(model, X.to("simulated"))
        assert not directed or session.stats()["copies"] == 0
    assert torch.equal(found, expected)
    for one, other in zip(grads, gradients):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


FIRST_USES = {
    "add_": lambda x, p: x.add_(p),
    "out": lambda x, p: torch.add(x, p, out=x),
    "foreach": lambda x, p: torch._foreach_add_([x], [p]),
}


@pytest.mark.parametrize(("strategy", "room"), PLACES)
@pytest.mark.parametrize("use", sorted(FIRST_USES))
def test_a_parameter_is_a_weight_from_a_first_use_that_writes_another_tensor(use, strategy, room):
    with offload(mlp(2), "simulated", strategy=strategy, memory=room) as session:
        new = torch.nn.Parameter(torch.ones(16))
        with torch.no_grad():
            FIRST_USES[use](X.to("simulated") * 1.0, new)
        assert new.device == session.target
        (gradient,) = torch.autograd.grad((new * 2).sum(), [new])
        assert gradient.device == session.target


CHANGES = {
    "result": lambda x: (z := x.exp(), z.mul_(2))[0],
    "argument": lambda x: (y := x * 2, y.sin(), y.mul_(3))[1],
    "view": lambda x: (z := x.exp(), z[0].zero_())[0],
    "alias": lambda x: (z := x.sigmoid(), z.detach().zero_())[0],
}


@pytest.mark.parametrize(("strategy", "room"), PLACES)
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_change_of_a_saved_tensor_is_an_error(change, strategy, room):
    model = mlp(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        CHANGES[change](model(X)).sum().backward()
    with offload(model, "simulated", strategy=strategy, memory=room):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            CHANGES[change](model(X.to("simulated"))).sum().backward()
        # The session works on.
        model(X.to("simulated")).sum().backward()


@pytest.mark.parametrize(("strategy", "room"), PLACES)
def test_new_memory_of_a_saved_weight_is_an_error_also_after_its_next_use(strategy, room):
    def program(model, x):
        y = model(x * x)
        with torch.no_grad():
            model[1].weight.set_(torch.eye(16))
        model(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    program(mlp(2), X)
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy, memory=room):
        program(model, X.to("simulated"))


@pytest.mark.parametrize(("strategy", "room"), PLACES)
@pytest.mark.parametrize("function", ["kl_div", "triplet_margin_loss", "cov"])
def test_results_that_are_not_saved_may_change(function, strategy, room):
    def program(model, x):
        y, z = model(x), model(x * 0.5)
        if function == "cov":
            result = torch.cov(y)
        elif function == "kl_div":
            result = torch.nn.functional.kl_div(y, z.exp(), reduction="batchmean")
        else:
            result = torch.nn.functional.triplet_margin_loss(y, z, y * z, reduction="none", swap=True)
        result.mul_(2)
        result.sum().backward()
        return model[0].weight.grad

    expected = program(mlp(1), X)
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy, memory=room):
        for _ in range(20):
            model.zero_grad()
            found = program(model, X.to("simulated"))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["flow", "genoa", "cpu"])
def test_a_leaf_that_is_written_is_an_error(strategy):
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy):
        leaf = torch.zeros(3, 16, device="simulated", requires_grad=True)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            leaf.add_(model[0].bias)


def test_the_object_of_the_simulated_device_is_a_device():
    with offload(mlp(1), simulated_device("1MiB")) as session:
        assert session.target == torch.device("simulated", 0)


@pytest.mark.parametrize(("strategy", "room"), PLACES)
def test_out_gets_the_shape_of_the_result(strategy, room):
    simulated_device()
    model = mlp(1)
    with torch.no_grad(), offload(model, "simulated", strategy=strategy, memory=room):
        out = torch.empty(0).to("simulated")
        assert torch.add(model[0].bias, 1, out=out) is out
        assert out.shape == (16,) and torch.equal(out.cpu(), model[0].bias.cpu() + 1)
