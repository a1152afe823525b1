"""`torch.func` and forward-mode derivatives of offloaded models, which need the tensors that a transform sees."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as forward  # noqa: E402
from tensorref_common import STRATEGIES, X, mlp  # noqa: E402
from torch import func  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cotensor.tensorref import offload  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")



def loss(model):
    return lambda parameters, x: func.functional_call(model, parameters, (x,)).sin().sum()


def grad(model, x):
    return func.grad(loss(model))(dict(model.named_parameters()), x)


def per_sample(model, x):
    detached = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return func.vmap(func.grad_and_value(loss(model)), in_dims=(None, 0))(detached, x)


def vmap(model, x):
    func.vmap(model)(x).sin().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def jvp(model, x):
    return func.jvp(model, (x,), (torch.ones_like(x),))


def jvp_of_weights(model, x):
    parameters = dict(model.named_parameters())
    tangents = {name: torch.ones_like(parameter) for name, parameter in parameters.items()}
    return func.jvp(lambda values: loss(model)(values, x), (parameters,), (tangents,))


def jvp_of_checkpoint(model, x):
    return func.jvp(lambda x: checkpoint(model, x, use_reentrant=False), (x,), (torch.ones_like(x),))


def vjp(model, x):
    y, pull = func.vjp(model, x)
    return y, pull(torch.ones_like(y))


def jacobians(model, x):
    return func.jacrev(model)(x), func.jacfwd(model)(x)


def hessian(model, x):
    return func.hessian(lambda value: model(value).sin().sum())(x[0])


def ensemble(model, x):
    models = [model, copy.deepcopy(model)]
    parameters, buffers = func.stack_module_state(models)
    return func.vmap(lambda p, b: func.functional_call(model, (p, b), (x,)))(parameters, buffers)


def statistics(model, x):
    part = torch.nn.Sequential(model[0], torch.nn.BatchNorm1d(16))
    buffers = {name: buffer.clone() for name, buffer in part.named_buffers()}

    def value(parameters, buffers):
        return func.functional_call(part, (parameters, buffers), (x,)).sin().sum(), buffers

    return func.grad(value, has_aux=True)(dict(part.named_parameters()), buffers)


def dual(model, x):
    def unpacked(y):
        return list(forward.unpack_dual(y))

    with forward.dual_level():
        weight = forward.make_dual(model[0].weight, torch.ones_like(model[0].weight))
        of_weight = torch.nn.functional.linear(x, weight)
        return unpacked(model(forward.make_dual(x, torch.ones_like(x)))) + unpacked(of_weight)


@STRATEGIES
@pytest.mark.parametrize("memory_share", [1, 0.5, 0])
@pytest.mark.parametrize(
    "program",
    [grad, per_sample, vmap, jvp, jvp_of_weights, jvp_of_checkpoint, vjp, jacobians, hessian, ensemble, statistics, dual],
)
def test_derivatives_are_those_of_the_host(program, memory_share, strategy):
    expected = program(mlp(2), X)
    model = mlp(2)
    size = sum(parameter.nbytes for parameter in model.parameters())
    with offload(model, "simulated", strategy=strategy, memory=int(size * memory_share) or 1):
        for _ in range(2):
            model.zero_grad()
            found = program(model, X.to("simulated"))
            if program is statistics:
                break
        # The session saves tensors of other passes again.
        model(X).sum().backward()
    leaves = torch.utils._pytree.tree_leaves
    for one, other in zip(leaves(found), leaves(expected)):
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["genoa", "flow", "cpu"])
def test_linearize_is_refused(strategy, memory):
    model, x = torch.nn.Linear(3, 2), torch.ones(3)
    before = torch.func.linearize(model, x)[1](x)
    with offload(model, "simulated", strategy=strategy), pytest.raises(NotImplementedError, match="use torch.func.jvp"):
        torch.func.linearize(model, x)
    with pytest.raises(NotImplementedError, match="use torch.func.jvp"):
        torch.func.linearize(torch.sin, x.to("simulated"))
    assert torch.equal(torch.func.linearize(model, x)[1](x), before)


def test_batched_gradients_of_gradcheck_in_two_sessions():
    # They have an older kind of batched tensors, which are not counted as those of a transform.
    models = [mlp(1, width=3).double(), mlp(1, width=3).double()]
    with offload(models[0], "simulated"), offload(models[1], "simulated"):
        x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
        torch.autograd.gradcheck(lambda x: models[1](models[0](x)), (x,), check_batched_grad=True)


def looked_up(table, x):
    return torch.nn.functional.embedding(torch.tensor([1, 2], device=x.device), table, max_norm=0.5) * x


@STRATEGIES
def test_writes_of_a_function_in_a_transform_reach_the_weight(strategy):
    def run(table, x):
        mapped = func.vmap(lambda x: looked_up(table, x))(x)
        gradients = func.grad(lambda other: looked_up(other, x[:2]).sin().sum())(table.detach()[1:])
        with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
            func.grad(lambda x: looked_up(table, x).sum())(x[:2])
        return mapped, gradients

    def make():
        torch.manual_seed(0)
        return torch.nn.Embedding(5, 16)

    expected, offloaded = make(), make()
    results = run(expected.weight, X)
    with offload(offloaded, "simulated", strategy=strategy):
        found = run(offloaded.weight, X.to("simulated"))
    for one, other in zip([*found, offloaded.weight], [*results, expected.weight]):
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-5, atol=1e-6)


MADE = {
    "view": lambda x, weight: x.unsqueeze(0),
    "index": lambda x, weight: x[:3] + 1,
    "written view": lambda x, weight: x.clone().unsqueeze(0).add_(1),
    "new parameter": lambda x, weight: x.unsqueeze(0) * torch.nn.Parameter(torch.ones(16)),
    "like": lambda x, weight: torch.ones_like(x) * 2,
    "like a weight": lambda x, weight: torch.zeros_like(weight),
    "new": lambda x, weight: x.new_zeros(3),
}


@STRATEGIES
@pytest.mark.parametrize("name", sorted(MADE))
def test_views_and_new_tensors_in_a_transform_are_on_the_device(name, strategy):
    def run(model, x):
        function, weight = MADE[name], model[0].weight
        tangent = func.jvp(lambda x: function(x, weight), (x[0],), (x[1],))
        return [func.vmap(lambda row: function(row, weight))(x), *tangent]

    expected = run(mlp(1), X)
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy):
        found = run(model, X.to("simulated"))
        assert [one.device.type for one in found] == ["simulated"] * 3
        copies = [one.detach().cpu() for one in found]
    torch.testing.assert_close(copies, [one.detach() for one in expected])
