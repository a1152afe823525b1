"""Strategies, also those of programs, middlewares, and a budget that follows the free memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import X, check, mlp  # noqa: E402

from cotensor.errors import ConflictError, InvalidError  # noqa: E402
from cotensor.tensorref import Middleware, Strategy, offload  # noqa: E402


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


def test_copies_that_follow_a_failed_one_are_counted(memory):
    class All(Strategy):
        def ahead(self, operation, uses):
            return range(len(self.sizes))

    for number in range(100):
        model = mlp(4)
        before = memory.allocated_bytes
        with offload(model, "simulated", strategy=All()) as session, torch.no_grad():
            memory.fail(1, after=number)
            y = model[0](X)
            result_bytes = y.untyped_storage().nbytes()
            if memory.failing:
                # There were fewer copies.
                memory.fail(0)
                break
            assert session.stats()["out_of_memory"] == 1
            assert memory.allocated_bytes - before - result_bytes == session.stats()["used_bytes"]
        check(model[0], y)
        del y
        assert memory.allocated_bytes == before
    assert number >= 8


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


def test_free_memory_is_followed(memory, monkeypatch):
    monkeypatch.setattr("cotensor.tensorref.memory._INTERVAL_SECONDS", 0.0)
    model = mlp(16)
    memory.limit_bytes = memory.allocated_bytes + 40_000
    with offload(model, "simulated") as session, torch.no_grad():
        for _ in range(4):
            model(X)
        assert session.stats()["used_bytes"] == 16 * 1088
        other = torch.zeros(6000, device="simulated")       # another program takes 24 kB
        other.buffers[0].memory.limit_bytes -= other.nbytes
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
            assert strategy.used == sum(weight.size_bytes for weight in session.movers[0].weights.all if weight.copy is not None)
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


def test_an_exception_of_a_strategy_leaves_all_weights_as_they_are(memory):
    class Failing(Last):
        fails = False

        def evict(self, operation, uses):
            if self.fails:
                raise KeyError("from the strategy")
            return super().evict(operation, uses)

    model, strategy = mlp(10), Failing()
    with offload(model, "simulated", strategy=strategy, memory=8000 + memory.allocated_bytes) as session, torch.no_grad():
        y = model(X)
        before, budget = list(strategy.on_device), strategy.budget
        strategy.fails = True
        for fails in (lambda: model(X), lambda: session.movers[0].driver.set_budget(budget // 2)):
            with pytest.raises(KeyError, match="from the strategy"):
                fails()
            assert sorted(strategy.on_device) == sorted(before) and strategy.budget == budget
            assert strategy.used == sum(weight.size_bytes for weight in session.movers[0].weights.all if weight.copy is not None)
        strategy.fails = False
        y = model(X)
    check(model, y)


def test_methods_of_a_strategy_do_not_use_its_session(memory):
    class Asking(Strategy):
        def evict(self, operation, uses):
            session.stats()
            return super().evict(operation, uses)

    model = mlp(10)
    with offload(model, "simulated", strategy=Asking(), memory=8000 + memory.allocated_bytes) as session:
        with torch.no_grad(), pytest.raises(ConflictError, match="a method of a strategy uses its own session"):
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


@pytest.mark.parametrize("strategy", ["flow", "genoa", "lru", "cpu"])
@pytest.mark.parametrize("room", ["1MiB", 1])
def test_algorithms_are_those_of_arguments_with_gradients(strategy, room, memory):
    # ``matmul`` chooses by the arguments' gradients, also where they are disabled.
    def product(weight, other):
        with torch.no_grad():
            return torch.matmul(weight, other.requires_grad_())

    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 5)
    layer.weight = torch.nn.Parameter(9 * torch.randn(5, 5, 5))
    other = 9 * torch.randn(1, 5, 5)
    expected = product(layer.weight, other.clone())
    with offload(layer, "simulated", strategy=strategy, memory=room):
        assert torch.equal(product(layer.weight, other.to("simulated")).cpu(), expected)


@pytest.mark.parametrize("strategy", ["flow", "genoa", "lru", "cpu"])
@pytest.mark.parametrize("room", ["1MiB", 1])
def test_dense_gradient_of_a_sparse_result(strategy, room, memory):
    layer = torch.nn.Linear(4, 4)
    expected = layer.weight.detach() * 2
    with offload(layer, "simulated", strategy=strategy, memory=room):
        result = layer.weight.to_sparse()
        assert result.device.type == "simulated" and result.layout is torch.sparse_coo
        gradient = (2 * layer.weight.detach()).to("simulated")
        result.mul_(1)
        torch.autograd.backward([result], [gradient])
    assert torch.equal(layer.weight.grad, expected)
