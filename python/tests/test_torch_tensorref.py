"""Interception: what a program sees of its tensors, escapes, operations in place, gradients, failing memory."""

from __future__ import annotations

import contextlib
import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tensorref_common import X, check, mlp  # noqa: E402

from cotensor.tensorref import Middleware, offload  # noqa: E402


def test_tensors_show_the_device(strategy):
    model = mlp(1)
    weight = model[0].weight
    with offload(model, "simulated", strategy=strategy):
        assert weight.device == torch.device("simulated", 0) and not weight.is_cpu
        assert weight.data.device == weight.t().device == weight.device
        assert weight.to("simulated") is weight and model.to("simulated")[0].weight is weight
        assert weight.cpu().device.type == "cpu" and weight.cpu() is not weight
        y = model(X)
        assert y.device == weight.device == X.to(weight).device == torch.zeros_like(weight).device
        assert torch.ones(2, device=weight.device).device == weight.device
        assert X.device.type == "cpu" and torch.zeros(2).device.type == "cpu"
        assert weight.to(torch.float64).dtype == torch.float64 and weight.dtype == torch.float32
    assert weight.device.type == "cpu"
    check(model, y)


def test_writes_reach_the_next_operation(strategy):
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        model(X)
        model[0].weight.mul_(2)
        model[0].weight[0, 0] = 5
        y = model(X)
        model[1].bias.data.add_(1)
        z = model(X)
        model[1].weight += model(X)[:1, :1]
        last = model(X)
        model[0].weight.data = torch.ones(16, 16)
        other = model(X)
        moved = model.half()
        assert moved[0].weight.dtype == torch.float16
        model.float()
        again = model(X)
    assert model[0].weight.is_cpu and not torch.equal(y.cpu(), z.cpu()) and not torch.equal(z.cpu(), last.cpu())
    assert not torch.equal(last.cpu(), other.cpu())
    check(model, again)


def test_memory_given_out_is_read_anew(strategy):
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        model(X)
        array = model[0].weight.detach().numpy()
        model(X)
        array[:] = 3
        three = model(X)
        array[:] = 4
        y = model(X)
    check(model, y)
    array[:] = 3
    check(model, three)


def test_views_and_tied_weights_share_one_copy(memory):
    model = mlp(2)
    model[1].weight = model[0].weight
    whole = model[0].weight
    with offload(model, "simulated", strategy="lru"), torch.no_grad():
        memory.reset()
        top, bottom = whole.chunk(2)
        y = torch.cat([F.linear(X, top), F.linear(X, bottom), F.linear(X, whole), X @ whole.t()], 1)
        assert memory.copied_in_bytes < 2 * whole.nbytes + 8 * X.nbytes
        model(X)
    assert torch.equal(y.cpu()[:, :16], y.cpu()[:, 16:32])


def test_batch_norm_trains_and_updates_its_statistics(strategy):
    plain, model = (torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8)) for _ in range(2))
    model.load_state_dict(plain.state_dict())

    def run(module):
        for training in (True, True, False):
            y = module.train(training)(X)
            y.square().sum().backward()
        return y.detach()

    with offload(model, "simulated", strategy=strategy):
        y = run(model).cpu()
    torch.testing.assert_close(y, run(plain))
    for one, other in zip(model.buffers(), plain.buffers()):
        torch.testing.assert_close(one, other)
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)


def test_statistics_that_the_host_updates_reach_the_device(strategy):
    class Place(Middleware):
        place = None

        def before_operation(self, operation):
            return self.place

    model = torch.nn.Sequential(torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 16))
    plain, middleware = copy.deepcopy(model), Place()
    with offload(model, "simulated", strategy=strategy) as session:
        session.use(middleware)
        for middleware.place in (None, "host", None, "host", None):
            model(X)
    [plain(X) for _ in range(5)]
    torch.testing.assert_close(model[0].running_mean, plain[0].running_mean)


def test_a_weight_changed_before_backward_is_an_error(strategy):
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy):
        loss = model(X).sum()
        with torch.no_grad():
            model[1].weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_an_exception_of_the_backward_pass_reaches_the_program(strategy):
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("in the middle")

    model = mlp(2)
    with offload(model, "simulated", strategy=strategy):
        with pytest.raises(ValueError, match="in the middle"):
            Failing.apply(model(X)).sum().backward()
        model(X).sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("room", [1 << 20, 3000, 1])
def test_checkpoints_recompute_on_the_device(room, reentrant, strategy, memory):
    from torch.utils.checkpoint import checkpoint

    model, plain = mlp(4), mlp(4)
    with offload(model, "simulated", strategy=strategy, memory=room) as session:
        x = X.to("simulated") if room == 1 else X
        before = session.stats()["copies"]
        checkpoint(model, x.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
        assert session.stats()["copies"] > before or room == 1
    plain(X).sum().backward()
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-6)


def test_conditional_layers_and_changing_shapes(strategy, memory):
    model = mlp(8)
    with offload(model, "simulated", strategy=strategy, memory=8000 + memory.allocated_bytes), torch.no_grad():
        for turn in range(20):
            x = X[: 1 + turn % 3]
            y = x
            for index, layer in enumerate(model):
                if turn < 8 or index != turn % 8:
                    y = layer(y)
            expected = x
            for index in range(8):
                if turn < 8 or index != turn % 8:
                    weight, bias = (getattr(model[index], name).cpu() for name in ("weight", "bias"))
                    expected = expected @ weight.t() + bias
            torch.testing.assert_close(y.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_failing_memory_is_survived(strategy, memory):
    model = mlp(4)
    with torch.no_grad():
        expected = model(X)
        with offload(model, "simulated", strategy=strategy) as session:
            for _ in range(3):
                for _ in range(12):
                    memory.fail(1)
                    output = model(X).cpu()
                    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
            assert session.stats()["out_of_memory"] > 0


@pytest.mark.parametrize("training", [False, True])
def test_each_allocation_in_turn_finds_no_memory(strategy, memory, training):
    model, plain = mlp(4), mlp(4)
    expected = plain(X)
    expected.square().sum().backward()
    before = memory.allocated_bytes
    limit = before + 8000
    with offload(model, "simulated", strategy=strategy, memory=limit) as session, torch.set_grad_enabled(training):
        for _ in range(3):
            model(X)
        for number in range(1000):
            memory.fail(1, after=number)
            output = model(X)
            if memory.failing and not training:
                break
            torch.testing.assert_close(output.detach().cpu(), expected.detach(), rtol=1e-6, atol=1e-6)
            if training:
                if memory.failing:
                    # The next one is in the backward pass, which would raise.
                    memory.fail(0)
                    break
                model.zero_grad()
                output.square().sum().backward()
                for one, other in zip(model.parameters(), plain.parameters()):
                    torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-6)
            del output
            # All copies on the device are counted, also those that are made after a failure.
            assert memory.allocated_bytes - before == session.stats()["used_bytes"]
        assert number > 3 and session.stats()["out_of_memory"] >= number


def test_a_weight_larger_than_the_memory_runs_on_the_host(strategy, memory):
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy, memory=1000) as session, torch.no_grad():
        y = model(X)
        assert session.stats()["on_host"] == 2 and session.stats()["copies"] == 0
        assert y.device.type == "simulated"
    check(model, y)


def test_graphs_are_freed(strategy, memory):
    model = mlp(3)
    before = memory.allocated_bytes
    with offload(model, "simulated", strategy=strategy):
        y = model(X).relu().sigmoid()
        alive = weakref.ref(y)
        del y
        gc.collect()
        assert alive() is None
    assert memory.allocated_bytes == before


def test_functions_of_several_weights(strategy):
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    convolutions = torch.nn.Sequential(
        torch.nn.Conv1d(3, 4, 3), torch.nn.BatchNorm1d(4), torch.nn.ReLU(inplace=True), torch.nn.MaxPool1d(2), torch.nn.Flatten()
    )
    x = X.reshape(1, 3, 16)
    for module, inputs in ((attention, (x, x, x)), (layer, (x,)), (convolutions, (x,))):
        results = []
        for session in (offload(module, "simulated", strategy=strategy), contextlib.nullcontext()):
            module.zero_grad()
            with session:
                module.eval()
                y = module(*inputs)
                y = y[0] if isinstance(y, tuple) else y
                y.square().sum().backward()
            results.append([y.detach().cpu(), *[parameter.grad for parameter in module.parameters()]])
        for one, other in zip(*results):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
