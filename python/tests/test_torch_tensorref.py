"""Interception: what a program sees of its tensors, escapes, operations in place, threads, failing memory."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from cotensor.errors import ConflictError, InvalidError  # noqa: E402
from cotensor.tensorref import Middleware, Strategy, disable, enable, offload, simulated_device  # noqa: E402


@pytest.fixture
def memory():
    # Tensors of earlier tests would count.
    gc.collect()
    memory = simulated_device().memory
    yield memory
    memory.limit_bytes = None
    memory.fail(0)


@pytest.fixture(params=["genoa", "flow", "lru", "pinned"])
def strategy(request, memory):
    return request.param


def mlp(layers=6, width=16, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])


X = torch.linspace(-1, 1, 48).reshape(3, 16)


def check(model, session_output, x=X):
    with torch.no_grad():
        torch.testing.assert_close(session_output.detach().cpu(), model(x), rtol=1e-6, atol=1e-6)


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


def test_checkpoints_recompute_on_the_device(strategy, memory):
    from torch.utils.checkpoint import checkpoint

    model, plain = mlp(4), mlp(4)
    with offload(model, "simulated", strategy=strategy) as session:
        before = session.stats()["copies"]
        checkpoint(model, X.clone().requires_grad_(), use_reentrant=False).sum().backward()
        assert session.stats()["copies"] > before
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


def test_flow_plans_and_copies_less_than_lru(memory):
    copied = {}
    for strategy in ("flow", "lru"):
        model = mlp(10)
        with offload(model, "simulated", strategy=strategy, memory=8000 + memory.allocated_bytes) as session, torch.no_grad():
            for _ in range(4):
                model(X)
            expected = session.forecast(20)
            before = session.stats()["copied_bytes"]
            for _ in range(10):
                check_now = model(X)
            copied[strategy] = session.stats()["copied_bytes"] - before
            assert session.stats()["used_bytes"] <= session.stats()["budget_bytes"]
            if strategy == "flow":
                assert [one.name for one in expected] == ["linear"] * 20
                assert {use for one in expected for use in one.uses} == {name for name, _ in model.named_parameters()}
                assert any(one.copied for one in expected) and any(one.evicted for one in expected)
        check(model, check_now)
    assert copied["flow"] < 0.8 * copied["lru"]


def test_pinned_keeps_the_first_weights(memory):
    model, copied = mlp(10), []

    class Watch(Middleware):
        def after_move(self, move):
            if move.to_device:
                copied.append(move.tensor)

    with offload(model, "simulated", strategy="pinned", memory=8000 + memory.allocated_bytes) as session, torch.no_grad():
        for _ in range(3):
            model(X)
        session.use(Watch())
        y = model(X)
        assert session.stats()["used_bytes"] <= session.stats()["budget_bytes"]
    names = [name for name, _ in model.named_parameters()]
    # One layer and the next are streamed beside those that stay.
    assert 8 <= len(copied) < len(names) and copied == names[-len(copied) :]
    check(model, y)


def test_the_strategy_cpu_copies_no_weight(memory):
    model = mlp(3)
    with offload(model, "simulated", strategy="cpu") as session:
        y = model(X)
        y.sum().backward()
        assert session.stats()["copies"] == 0 and session.stats()["on_host"] == 3
        assert y.device.type == "simulated" and model[0].weight.grad.device.type == "cpu"
    check(model, y)


def test_an_announced_program_is_planned_from_its_first_pass(memory):
    model = mlp(10)
    session = offload(model, "simulated", memory=8000 + memory.allocated_bytes)
    session.announce([("linear", [f"{layer}.weight", f"{layer}.bias"], 50) for layer in range(10)])
    with session, torch.no_grad():
        model[0](X)
        assert [one.uses[0] for one in session.forecast(2)] == ["1.weight", "2.weight"]
    with pytest.raises(InvalidError, match="no weight"):
        session.announce([("linear", ["11.weight"], 50)])


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
    limit = memory.allocated_bytes + 8000
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
        assert number > 3 and session.stats()["out_of_memory"] >= number


def test_a_weight_larger_than_the_memory_runs_on_the_host(strategy, memory):
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy, memory=1000) as session, torch.no_grad():
        y = model(X)
        assert session.stats()["on_host"] == 2 and session.stats()["copies"] == 0
        assert y.device.type == "simulated"
    check(model, y)


def test_threads_of_the_block_are_inside(strategy):
    model, found = mlp(2), {}
    start = threading.Thread.start

    def program(name):
        # Outside of the model: both devices mix only inside of the session.
        found[name] = model[0].weight.device.type, (model(X) + X.to(model[0].weight.device)).detach().cpu()

    with ThreadPoolExecutor(1) as before, ThreadPoolExecutor(1) as pool:
        before.submit(int).result()
        with offload(model, "simulated", strategy=strategy):
            threads = [threading.Thread(target=program, args=(name,)) for name in "ab"]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            pool.submit(program, "pool").result()
            assert before.submit(lambda: model[0].weight.device.type).result() == "cpu"
            assert all("run" not in vars(thread) for thread in threads)
        # The pool's thread goes on after the block.
        pool.submit(program, "after").result()
        with offload(model, "simulated", strategy=strategy):
            pool.submit(lambda: model(X).sum().backward()).result()
    assert found.pop("after")[0] == "cpu"
    assert len(found) == 3 and all(device == "simulated" for device, _ in found.values())
    expected = model(X) + X
    for _, result in found.values():
        torch.testing.assert_close(result, expected.detach(), rtol=1e-6, atol=1e-6)
    assert model[0].weight.grad is not None and threading.Thread.start is start


def test_other_threads(strategy):
    model = mlp(3)
    results = []
    with offload(model, "simulated", strategy=strategy) as session:

        def call():
            results.append(model(X))
            with session:
                results.append(model(X).relu())

        threads = [threading.Thread(target=call) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(results) == 6
    for y in results[::1]:
        assert y.shape == (3, 16)
    check(model, results[0])


def test_enable_without_a_block(strategy):
    model = mlp(2)
    enable(model, "simulated", strategy=strategy)
    try:
        y = model(X)
        assert model[0].weight.device.type == "simulated"
    finally:
        disable(model)
    assert model[0].weight.device.type == "cpu" and not model._forward_hooks
    check(model, y)


def test_middlewares_see_veto_and_redirect(memory):
    model = mlp(3)
    seen = []

    class Watch(Middleware):
        def before_operation(self, operation):
            return "host" if operation.uses and operation.uses[0] == "1.weight" else None

        def after_operation(self, operation, place, elapsed_ns):
            seen.append((operation.uses[:1], place))

        def before_move(self, move):
            return move.tensor != "2.bias"

        def after_move(self, move):
            seen.append(move.tensor)

    with offload(model, "simulated") as session, torch.no_grad():
        remove = session.use(Watch())
        y = model(X)
        remove()
        model(X)
    places = dict(one for one in seen if isinstance(one, tuple))
    assert places == {("0.weight",): "device", ("1.weight",): "host", ("2.weight",): "host"}
    assert "0.weight" in seen and "1.weight" not in seen and "2.bias" not in seen
    check(model, y)


def test_wrong_arguments(memory):
    with pytest.raises(InvalidError, match='strategy: "best" is none of "flow", "genoa", "lru", "pinned", "cpu"'):
        offload(mlp(1), "simulated", strategy="best")
    for wrong in (Strategy, None, 3):
        with pytest.raises(InvalidError, match="strategy: pass a name or an object"):
            offload(mlp(1), "simulated", strategy=wrong)
    with pytest.raises(InvalidError, match="device"):
        offload(mlp(1), "cpu")
    with pytest.raises(InvalidError, match="model"):
        offload(3, "simulated")
    with pytest.raises(InvalidError, match="memory"):
        offload(mlp(1), "simulated", memory="lots")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_run_uncompiled(strategy, backend):
    model, plain = mlp(3), mlp(3)
    compiled, activation = torch.compile(model, backend=backend), torch.compile(torch.relu, backend=backend)
    for call_before in (False, True):
        if call_before:
            compiled(X)
        with offload(model, "simulated", strategy=strategy) as session:
            y = activation(compiled(X))
            y.sum().backward()
            assert session.stats()["copies"] >= 6 and y.device.type == "simulated"
    torch.relu(plain(X)).sum().backward()
    check(torch.nn.Sequential(plain, torch.nn.ReLU()), y)
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one.grad, 2 * other.grad, rtol=1e-6, atol=1e-6)


def test_pipelines_and_lists_of_modules(strategy):
    class Pipeline:
        def __init__(self):
            self.components = {"first": mlp(2), "scheduler": object(), "second": mlp(2, seed=1)}

        def __call__(self, x):
            return self.components["second"](self.components["first"](x))

    pipeline = Pipeline()
    for models in (pipeline, [pipeline.components["first"], pipeline.components["second"]]):
        with offload(models, "simulated", strategy=strategy) as session:
            y = pipeline(X)
            assert session.stats()["copies"] == 8
        check(pipeline, y)


def test_free_memory_is_followed(memory, monkeypatch):
    monkeypatch.setattr("cotensor.tensorref.memory._INTERVAL_SECONDS", 0.0)
    model = mlp(16)
    memory.limit_bytes = memory.allocated_bytes + 40_000
    with offload(model, "simulated") as session, torch.no_grad():
        for _ in range(4):
            model(X)
        assert session.stats()["used_bytes"] == 16 * 1088
        other = torch.zeros(6000, device="simulated")       # another program takes 24 kB
        other.buffer.memory.limit_bytes -= other.nbytes
        del other
        for _ in range(3):
            y = model(X)
            assert session.stats()["used_bytes"] < 14_000
        assert session.stats()["on_host"] == 0
        memory.limit_bytes += 24_000
        for _ in range(4):
            model(X)
        assert session.stats()["used_bytes"] == 16 * 1088
    check(model, y)


def test_attached_weights_stay_shared(strategy):
    import cotensor
    import cotensor.torch

    source = mlp(3)
    with cotensor.Store() as store:
        cotensor.torch.publish(source, "mlp", store=store)
        with cotensor.torch.on_meta():
            model = mlp(3)
        cotensor.torch.attach(model, "mlp", store=store)
        addresses = [parameter.data_ptr() for parameter in model.parameters()]
        with offload(model, "simulated", strategy=strategy, memory=6000) as session, torch.no_grad():
            for _ in range(3):
                y = model(X)
            assert session.stats()["copies"] > 0
        assert addresses == [parameter.data_ptr() for parameter in model.parameters()]
        check(source, y)
        del model


def test_a_session_can_be_entered_again(strategy):
    model = mlp(2)
    session = offload(model, "simulated", strategy=strategy)
    with session:
        model(X)
    model[0].weight.data = torch.full((16, 16), 0.5)
    with torch.no_grad():
        model[1].weight.mul_(3)
    model[1].register_buffer("late", torch.ones(3))
    with session:
        y = model(X)
        late = model[1].late.device
    check(model, y)
    assert late.type == "simulated"
    model.double()
    with session:
        z = model(X.double())
    check(model, z, X.double())


class Last(Strategy):
    """Evicts what was used last: the best cache for a loop."""

    def evict(self, operation, uses):
        return next(weight for weight in reversed(self.on_device) if weight not in uses)


@pytest.mark.parametrize("own", [Strategy, Last])
def test_strategies_of_programs(own, memory):
    model, strategy = mlp(10), own()
    with offload(model, "simulated", strategy=strategy, memory=8000 + memory.allocated_bytes) as session, torch.no_grad():
        for turn in range(8):
            if turn == 4:
                before = session.stats()["copied_bytes"]
            y = model(X)
            assert 0 < strategy.used <= strategy.budget
            assert strategy.used == sum(weight.size_bytes for weight in session.weights.all if weight.copy is not None)
        copied = (session.stats()["copied_bytes"] - before) / 4 / (10 * 1088)
    check(model, y)
    assert copied == 1 if own is Strategy else copied < 0.7, copied
    with pytest.raises(InvalidError, match="strategy"):
        offload(model, "simulated", strategy=strategy)


def test_strategies_copy_ahead_and_free_after(memory):
    class Next(Strategy):
        def ahead(self, operation, uses):
            return [weight + 2 for weight in uses if weight + 2 < len(self.sizes)]

        def after(self, operation, uses, elapsed_ns):
            assert operation == "linear" and elapsed_ns > 0
            return uses

    model, strategy = mlp(3), Next()
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        y = model[0](X)
        assert list(strategy.on_device) == [2, 3]
        y = model[2](model[1](y))
        assert not strategy.on_device
    check(model, y)


def test_a_strategy_that_breaks_its_rules_is_an_error(memory):
    class Wrong(Strategy):
        def evict(self, operation, uses):
            return uses[0]

    model = mlp(10)
    limit = 8000 + memory.allocated_bytes
    with offload(model, "simulated", strategy=Wrong(), memory=limit), pytest.raises(ConflictError, match="in use"):
        model(X)


@pytest.mark.parametrize("own", [Strategy, Last])
def test_failing_memory_is_survived_by_strategies_of_programs(own, memory):
    model = mlp(4)
    with torch.no_grad(), offload(model, "simulated", strategy=own()):
        for _ in range(12):
            memory.fail(1)
            y = model(X)
    memory.fail(0)
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


def test_copies_of_a_model_are_models(strategy):
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        model(X)
        # As of a model on a device.
        copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        y = copied(X)
        assert y.device.type == "simulated"
        copied[0].weight.mul_(2)
    check(model, y)
    with torch.no_grad():
        copied = copied.cpu()
        assert copied(X).is_cpu and not torch.equal(copied(X), model(X))
        assert torch.equal(pickled(X), model(X))


def test_state_dicts_are_saved_and_loaded(strategy, tmp_path):
    model, other = mlp(2), mlp(2, seed=1)
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        model(X)
        torch.save(model.state_dict(), tmp_path / "model.pt")
        model.load_state_dict(other.state_dict())
        y = model(X)
    check(other, y)
    loaded = torch.load(tmp_path / "model.pt")
    assert all(torch.equal(value, mlp(2).state_dict()[name]) and value.is_cpu for name, value in loaded.items())
