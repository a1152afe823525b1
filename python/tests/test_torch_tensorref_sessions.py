"""Sessions: threads, models without a block, several modules, copies of models and of their states."""

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

from tensorref_common import STRATEGIES, X, check, mlp  # noqa: E402

from cotensor.errors import InvalidError  # noqa: E402
from cotensor.tensorref import Middleware, Strategy, disable, enable, offload  # noqa: E402
from cotensor.tensorref.known import MEMORY, TENSORS  # noqa: E402
from cotensor.tensorref.threads import everywhere  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")


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


MODELS = {"list": lambda *models: list(models), "dict": lambda *models: dict(enumerate(models)), "tuple": lambda *models: models}


@pytest.mark.parametrize("kind", MODELS)
def test_enable_takes_what_offload_takes(kind, strategy):
    first, second = mlp(2), mlp(2, seed=1)
    models, equal = MODELS[kind](first, second), MODELS[kind](first, second)
    enable(models, "simulated", strategy=strategy)
    # Again: the first session ends.
    session = enable(models, "simulated", strategy=strategy)
    try:
        disable(equal)
        assert session.is_entered and first[0].weight.device.type == second[0].weight.device.type == "simulated"
        y = second(first(X))
    finally:
        disable(models)
    disable(models)
    assert not session.is_entered and first[0].weight.device.type == second[0].weight.device.type == "cpu"
    torch.testing.assert_close(y.detach().cpu(), second(first(X)).detach(), rtol=1e-6, atol=1e-6)


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
    for field, value in [("memory", "4096"), ("bandwidth", "12")]:
        with pytest.raises(InvalidError, match=f"{field}: {value} has no unit"):
            offload(mlp(1), "simulated", **{field: value})


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


@pytest.mark.parametrize("strategy", ["flow", "genoa", "cpu"])
def test_a_session_inside_of_another_one_keeps_the_memory_of_weights(strategy):
    """The end of the inner session moved all weights, which the outer one shows as tensors of the device."""
    model = torch.nn.Sequential(mlp(1, width=16), torch.nn.BatchNorm1d(16))
    model.eval()
    addresses = [tensor.data_ptr() for tensor in model.state_dict().values()]
    with offload(model, "simulated", strategy="flow", memory="1MiB"):
        y = model(X.to("simulated"))
        with offload(model, "simulated", strategy=strategy, memory="1MiB") as inner:
            # Also buffers, which no operation makes weights.
            assert len(inner.movers[0].weights.all) == 7
            model(X.to("simulated"))
        y.sum().backward()
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == addresses
    assert model[0][0].weight.grad is not None


def test_other_modules_move_back_to_the_host(strategy):
    with offload(mlp(1), "simulated", strategy=strategy):
        made, moved = torch.nn.Linear(2, 2, device="simulated"), torch.nn.Linear(2, 2).to("simulated")
        for module in (made, moved):
            assert module.weight.device.type == "simulated"
            module.to("cpu")
            assert module.weight.device.type == "cpu" and type(module.weight) is torch.nn.Parameter


@STRATEGIES
@pytest.mark.parametrize("goes_home", [False, True])
def test_parameters_that_a_model_was_given_stay_where_they_are(goes_home, strategy):
    model = mlp(1)
    given = {name: tensor * 2 for name, tensor in model.state_dict().items()}
    with offload(model, "simulated", strategy=strategy):
        model.load_state_dict(given, assign=True)
        if goes_home:
            model.cpu()
            assert [tensor.device.type for tensor in model.parameters()] == ["cpu"] * 2
        model.to("simulated")
        assert model[0].weight.device.type == "simulated"
        with torch.no_grad():
            model[0].weight.zero_()
    assert model[0].weight.data_ptr() == given["0.weight"].data_ptr() and not given["0.weight"].any()


def test_sessions_end_in_any_order(strategy):
    first, second = mlp(2), torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    expected = copy.deepcopy(second)(torch.ones(1, 256)).sum()
    enable(first, "simulated", strategy=strategy, memory="512KiB")
    enable(second, "simulated", strategy=strategy, memory="512KiB")
    disable(first)
    memory = torch.simulated.memory
    memory.reset()
    result = second(torch.ones(1, 256, device="simulated")).sum()
    # What was saved keeps no copies: the session that packs it is the one that is left.
    assert memory.allocated_bytes < 512 << 10
    result.backward()
    disable(second)
    torch.testing.assert_close(result.detach().cpu(), expected.detach())
    assert all(parameter.grad is not None for parameter in second.parameters())
    # Nothing of the sessions packs any more.
    product = expected * torch.ones((), requires_grad=True)
    assert type(product.grad_fn._raw_saved_self.data) is torch.Tensor


def test_hundreds_of_models_are_enabled(strategy):
    models = [mlp(1, seed=seed) for seed in range(300)]
    for model in models:
        enable(model, "simulated", strategy=strategy)
    x = X.to("simulated")
    # The weights of two sessions in one operation, and a function without weights.
    both = models[3][0].weight + models[200][0].weight
    found = [models[0](x), models[-1](x) + models[7][0].bias, torch.zeros(3, device=x.device), both]
    torch.func.jvp(lambda y: found[0] * y, (x,), (x,))
    sum([one.sum() for one in found]).backward()
    for model in models:
        disable(model)
    assert models[7][0].bias.grad.sum() == 48 and models[200][0].weight.grad.sum() == 256
    expected = [models[0](X), models[-1](X) + models[7][0].bias, torch.zeros(3), models[3][0].weight + models[200][0].weight]
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.detach().cpu(), other.detach())


def test_functions_ask_the_sessions_that_know_their_tensors(strategy, monkeypatch):
    """Calls cost as much with many models as with one; a change of what a session knows is seen at once."""
    models, asked = [mlp(2) for _ in range(20)], []
    for model in models:
        enable(model, "simulated", strategy=strategy)
    sessions = everywhere()[-20:]
    for session in sessions:
        note = lambda *call, session=session, run=session.dispatch: asked.append(session) or run(*call)  # noqa: E731
        monkeypatch.setattr(session, "dispatch", note)
    try:
        x = X.to("simulated")
        for model, session in zip(models, sessions):
            before = model(x).detach().cpu()
            asked.clear()
            result = model(x)
            # The last session sees functions of tensors that none knows.
            assert session in asked and set(asked) <= {session, sessions[-1]}
            assert torch.equal(result.detach().cpu(), before)
        # A tensor that no session knew becomes a weight of the first one.
        weight = torch.ones(4, 4)
        assert weight.device.type == "cpu"
        models[0].extra = torch.nn.Parameter(weight)
        assert (models[0].extra * 2).device.type == "simulated"
        disable(models.pop())
        assert models[0](x).device.type == models[-1](x).device.type == "simulated"
        assert sessions[0] in asked and sessions[-1] not in asked[-4:]
        del result
    finally:
        for model in models:
            disable(model)


def test_sessions_that_have_ended_are_not_known():
    before = [len(known._keys) for known in (TENSORS, MEMORY)]
    models = [mlp(2) for _ in range(3)]
    for strategy, model in zip(("genoa", "flow", "flow"), models):
        enable(model, "simulated", strategy=strategy)
    results = [model(X.to("simulated")) for model in models]
    assert all(len(known._keys) > count for known, count in zip((TENSORS, MEMORY), before))
    for model in models:
        disable(model)
    copies = [weakref.ref(model[0].weight) for model in models]
    del model, models, results
    gc.collect()
    assert [copy() for copy in copies] == [None] * 3
    assert [len(known._keys) for known in (TENSORS, MEMORY)] == before


class Own(torch.nn.Parameter):
    """A parameter of a program's own class."""


def test_parameters_show_where_their_data_is(strategy):
    with offload(mlp(1), "simulated", strategy=strategy):
        other = torch.nn.Linear(16, 16).to("simulated")
        other(X.to("simulated"))
        assert other.weight.device.type == "simulated"
        other.to("cpu")
        assert other.weight.device.type == "cpu"
        for kind in (torch.nn.Parameter, Own):
            parameter = kind(torch.ones(3))
            parameter.data = torch.zeros(3, device="simulated")
            assert parameter.device.type == (parameter * 2).device.type == "simulated"
            parameter.data = torch.zeros(3)
            assert parameter.device.type == "cpu"


def test_a_backward_pass_after_the_block_keeps_no_copies(strategy):
    model = mlp(4)
    with offload(model, "simulated", strategy=strategy) as session:
        y = model(X.to("simulated"))
    assert session.stats()["used_bytes"] == 0
    y.sum().backward()
    assert session.stats()["used_bytes"] == 0 and model[0].weight.grad is not None
    with session:
        model(X.to("simulated")).sum().backward()
        assert session.stats()["used_bytes"] or strategy in ("cpu", "genoa")


class Pausing(torch.nn.Module):
    """Tells that it has begun, and waits."""

    def __init__(self):
        super().__init__()
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def forward(self, x):
        self.begun.set()
        assert self.goes_on.wait(60)
        return x


@STRATEGIES
def test_a_call_that_goes_on_after_the_block_makes_no_copies(strategy):
    pausing = Pausing()
    model = torch.nn.Sequential(mlp(2), pausing, mlp(2, seed=1))
    with ThreadPoolExecutor(1) as before:
        before.submit(int).result()
        with offload(model, "simulated", strategy=strategy) as session:
            calling = before.submit(model, X)
            assert pausing.begun.wait(60)
        pausing.goes_on.set()
        y = calling.result(60)
        assert session.stats()["used_bytes"] == 0 and not session.movers[0].by_copy
        check(model, y)
        with session:
            y = model(X)
        check(model, y)


class Waits(Middleware):
    """The first operation of each of two threads waits for that of the other one, for a time."""

    def __init__(self):
        self.barrier = threading.Barrier(2)

    def before_operation(self, operation):
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait(1)


def test_threads_enter_sessions_in_opposite_orders():
    first, second, waits = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), Waits()
    sessions = [offload(first, "simulated", strategy="cpu"), offload(second, "simulated", strategy="cpu")]
    [session.use(waits) for session in sessions]

    def program(outer, inner):
        with outer, inner:
            return (first.weight + second.weight).detach().cpu()

    threads = [threading.Thread(target=program, args=order, daemon=True) for order in (sessions, sessions[::-1])]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert not any(thread.is_alive() for thread in threads)


def test_a_model_is_disabled_in_its_thread():
    model = mlp(1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        enable(model, "simulated")
        # A thread from before is not in the session.
        with pytest.raises(InvalidError, match="in the thread that has called enable"):
            pool.submit(disable, model).result()
    assert model[0].weight.device.type == "simulated"
    disable(model)
    assert model[0].weight.device.type == "cpu"
