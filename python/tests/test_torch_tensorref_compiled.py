"""Compiled methods of offloaded modules: one operation each."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

from cotensor.tensorref import Middleware, disable, enable, offload, simulated_device  # noqa: E402

WIDTH = 16
X = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH)


@pytest.fixture(autouse=True)
def compiled_anew(memory):
    torch._dynamo.reset()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.norm = torch.nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


def blocks(count=3):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[Block() for _ in range(count)])


class Backend:
    """Runs graphs as they are; counts their calls and the devices of their tensors."""

    def __init__(self):
        self.calls, self.devices = 0, set()

    def __call__(self, graph, inputs):
        def run(*values):
            self.calls += 1
            self.devices |= {value.device.type for value in values if isinstance(value, torch.Tensor)}
            return graph.forward(*values)

        return run


class Names(Middleware):
    def __init__(self, place=None):
        self.seen, self._place = [], place

    def before_operation(self, operation):
        return self._place

    def after_operation(self, operation, place, elapsed_ns):
        self.seen.append((operation.name, place))


def trained(model, run, steps=3):
    """The outputs of some steps of training, and the state after them."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    outputs = []
    for _ in range(steps):
        output = run(X)
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output.detach().cpu())
    return outputs


def check(model, plain):
    for (name, one), other in zip(model.state_dict().items(), plain.state_dict().values()):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_blocks_are_operations(strategy, backend):
    model, plain, names = blocks(), blocks(), Names()
    for block in model:
        block.compile(backend=backend)
    methods, parameters = [block._compiled_call_impl for block in model], list(model.parameters())
    with offload(model, "simulated", strategy=strategy) as session:
        session.use(names)
        outputs = trained(model, model)
        with torch.no_grad():
            inferred = model.eval()(X)
        assert inferred.device.type == "simulated"
    compiled = [name for name, _ in names.seen if name.startswith("compiled")]
    assert compiled == ["compiled 0", "compiled 1", "compiled 2"] * 4
    assert ("linear", "device") not in names.seen
    torch.testing.assert_close(outputs, trained(plain, plain), rtol=1e-6, atol=1e-6)
    check(model, plain)
    torch.testing.assert_close(inferred.cpu(), plain.eval()(X), rtol=1e-6, atol=1e-6)
    # Everything is as before.
    assert all(one is other and one.is_cpu for one, other in zip(model.parameters(), parameters))
    assert [block._compiled_call_impl for block in model] == methods


class Decorated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = blocks()

    def forward(self, x):
        return self.blocks(x)


def compile_whole(model, backend):
    return torch.compile(model, backend=backend)


def compile_in_place(model, backend):
    model.compile(backend=backend)
    return model


def compile_forward(model, backend):
    model.forward = torch.compile(model.forward, backend=backend)
    return model


def compile_class(model, backend):
    class Compiled(Decorated):
        forward = torch.compile(Decorated.forward, backend=backend)

    model.__class__ = Compiled
    return model


def compile_nested(model, backend):
    for block in model.blocks:
        block.compile(backend=backend)
    model.compile(backend=backend)
    return torch.compile(model, backend=backend)


@pytest.mark.parametrize("compile_", [compile_whole, compile_in_place, compile_forward, compile_class, compile_nested])
def test_all_ways_to_compile(compile_):
    backend, names = Backend(), Names()
    model, plain = compile_(Decorated(), backend), Decorated()
    before = dict(vars(model))
    with offload(model, "simulated") as session:
        session.use(names)
        outputs = trained(model, model)
    assert names.seen[0] == ("compiled", "device") and "linear" not in dict(names.seen)
    assert backend.calls == 3 and backend.devices == {"simulated"}
    assert vars(model) == before
    torch.testing.assert_close(outputs, trained(plain, plain), rtol=1e-6, atol=1e-6)
    # Outside of the block, it runs compiled on the host.
    torch.testing.assert_close(model(X), plain(X), rtol=1e-6, atol=1e-6)
    assert backend.calls == 4 and backend.devices == {"simulated", "cpu"}


def test_code_whose_weights_do_not_fit_runs_uncompiled():
    backend, names = Backend(), Names()
    model, plain = compile_whole(Decorated(), backend), Decorated()
    size = sum(tensor.nbytes for tensor in plain.state_dict().values())
    with torch.no_grad(), offload(model.eval(), "simulated", memory=size // 2, strategy="lru") as session:
        session.use(names)
        output = model(X)
        assert session.stats()["used_bytes"] <= size // 2
    assert backend.calls == 0 and "linear" in dict(names.seen)
    torch.testing.assert_close(output.cpu(), plain.eval()(X), rtol=1e-6, atol=1e-6)


def test_code_that_a_middleware_sends_to_the_host_runs_uncompiled():
    model, plain = blocks(2).eval(), blocks(2).eval()
    backend, names = Backend(), Names("host")
    for block in model:
        block.compile(backend=backend)
    with torch.no_grad(), offload(model, "simulated") as session:
        session.use(names)
        output = model(X)
        assert output.device.type == "simulated" and set(dict(names.seen).values()) == {"host"}
    assert backend.calls == 0
    torch.testing.assert_close(output.cpu(), plain(X), rtol=1e-6, atol=1e-6)


class Steps(torch.nn.Module):
    """Writes a buffer, then computes; three graphs."""

    def __init__(self, fails=False):
        super().__init__()
        self.weight, self.norm = torch.nn.Parameter(torch.ones(WIDTH)), torch.nn.BatchNorm1d(WIDTH)
        self.register_buffer("count", torch.zeros(1))
        self.fails = fails

    def forward(self, x):
        self.count.add_(1)
        x = self.norm(x)
        torch._dynamo.graph_break()
        if self.fails:
            raise ValueError("later")
        y = x * self.weight
        torch._dynamo.graph_break()
        return y * 2 + y * 3


@pytest.mark.parametrize("backend, after", [("eager", 0), ("eager", 2), ("eager", 5), ("aot_eager", 0), ("aot_eager", 2)])
def test_a_second_attempt_starts_with_the_weights_of_the_first(backend, after, memory):
    model, plain = Steps(), Steps()
    model.compile(backend=backend)
    with torch.no_grad(), offload(model, "simulated") as session:
        outputs = [model(X).cpu()]
        memory.fail(1, after=after)
        outputs.append(model(X).cpu())
        failed = session.stats()["out_of_memory"]
        memory.fail(0)
    assert failed == 1
    with torch.no_grad():
        torch.testing.assert_close(outputs, [plain(X), plain(X)], rtol=1e-6, atol=1e-6)
    check(model, plain)


def test_an_exception_keeps_what_the_code_wrote_before_it():
    model = Steps()
    model.compile(backend="eager")
    with torch.no_grad(), offload(model, "simulated"):
        model(X)
        model.fails = True
        with pytest.raises(ValueError, match="later"):
            model(X)
        assert model.count.item() == 2 and model.norm.num_batches_tracked.item() == 2
        model.fails = False
        model(X)
    assert model.count.item() == 3


def test_gradients_inside_of_compiled_code():
    class Energy(Block):
        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                energy = self.down(torch.relu(self.up(x))).square().sum()
                torch._dynamo.graph_break()
                return torch.autograd.grad(energy, x)[0]

    torch.manual_seed(0)
    model = Energy()
    plain = copy.deepcopy(model)
    model.compile(backend="eager")
    with offload(model, "simulated"):
        output = model(X)
    torch.testing.assert_close(output.cpu(), plain(X), rtol=1e-6, atol=1e-6)


def test_threads_and_several_devices():
    simulated_device(count=2)
    model, plain = blocks(4).eval(), blocks(4).eval()
    backend, outputs = Backend(), []
    for block in model:
        block.compile(backend=backend)

    @torch.no_grad()
    def run():
        outputs.extend(model(X).cpu() for _ in range(4))

    with torch.no_grad(), offload(model, ["simulated:0", "simulated:1"]):
        run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert len(outputs) == 8 and backend.calls == 32
    torch.testing.assert_close(outputs, [plain(X)] * 8, rtol=1e-6, atol=1e-6)


def test_threads_of_a_pool_enter_by_a_compiled_model():
    backend, outputs = Backend(), []
    model, plain = compile_in_place(Decorated(), backend).eval(), Decorated().eval()
    entered = threading.Event()

    def run():
        entered.wait(60)
        with torch.no_grad():
            outputs.append(model(X))

    thread = threading.Thread(target=run)
    thread.start()
    with offload(model, "simulated"):
        entered.set()
        thread.join()
    assert outputs[0].device.type == "simulated" and backend.devices == {"simulated"}
    torch.testing.assert_close(outputs[0].cpu(), plain(X), rtol=1e-6, atol=1e-6)


class Counting(torch.nn.Module):
    """Replaces one buffer, and writes another one."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("last", torch.zeros(WIDTH))
        self.register_buffer("total", torch.zeros(WIDTH))

    def forward(self, x):
        self.last = x[0] * self.weight
        self.total.add_(self.last.detach())
        return x * self.weight


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_buffers_that_the_code_replaces_or_writes(backend):
    model = Counting()
    model.compile(backend=backend)
    total = model.total
    with torch.no_grad(), offload(model, "simulated"):
        for _ in range(3):
            model(X)
        assert model.last.device.type == "simulated"
    assert model.total is total and total.is_cpu
    torch.testing.assert_close(total, 3 * X[0])
    torch.testing.assert_close(model.last.cpu(), X[0])


def test_tied_weights_and_named_arguments():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.embed = torch.nn.Embedding(WIDTH, WIDTH)
            self.head = torch.nn.Linear(WIDTH, WIDTH, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids, *, scale=None, more=()):
            y = self.head(self.embed(ids)) * scale["by"]
            return {"y": y, "all": [y, *more]}

    model, plain = Tied(), Tied()
    model.compile(backend="aot_eager")
    arguments = (torch.arange(4),), {"scale": {"by": torch.tensor(2.0)}, "more": (X[0],)}
    with offload(model, "simulated") as session:
        result = model(*arguments[0], **arguments[1])
        (result["y"].sum() + result["all"][1].sum()).backward()
        assert session.stats()["copied_bytes"] < 2 * model.embed.weight.nbytes
    expected = plain(*arguments[0], **arguments[1])
    expected["y"].sum().backward()
    torch.testing.assert_close(result["all"][0].cpu(), expected["y"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.embed.weight.grad, plain.embed.weight.grad, rtol=1e-6, atol=1e-6)


def test_errors_of_compiled_code_leave_the_module_as_it_was():
    model = blocks(1)
    model[0].compile(backend="aot_eager")
    with offload(model, "simulated"):
        with pytest.raises(Exception, match="shape|size"):
            model(torch.ones(4, WIDTH + 1))
        assert model[0].up.weight is next(model.parameters()) and isinstance(model[0].up.weight, torch.nn.Parameter)
        output = model(X)
    torch.testing.assert_close(output.detach().cpu(), blocks(1)(X).detach(), rtol=1e-6, atol=1e-6)
    assert copy.deepcopy(model)[0].up.weight.is_cpu


def test_threads_call_one_compiled_module_at_once():
    backend, outputs, failures = Backend(), [], []
    model, plain = blocks(2).eval(), blocks(2).eval()
    for block in model:
        block.compile(backend=backend)

    @torch.no_grad()
    def run():
        try:
            outputs.extend(model(X).cpu() for _ in range(25))
        except Exception as failure:
            failures.append(failure)

    with torch.no_grad(), offload(model, "simulated"):
        model(X)
        threads = [threading.Thread(target=run) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert not failures and backend.calls == 2 + 75 * 2
    torch.testing.assert_close(outputs, [plain(X)] * 75, rtol=1e-6, atol=1e-6)


def test_sessions_end_in_any_order():
    backend = Backend()
    first, second = blocks(1), blocks(1)
    function = torch.compile(torch.relu, backend=backend)
    for model in (first, second):
        model.compile(backend=backend)
        enable(model, "simulated")
    disable(first)
    function(X)
    assert backend.calls == 0
    second(X)
    assert backend.calls == 1
    disable(second)
    function(X)
    assert backend.calls == 2


def test_programs_see_signatures_and_what_code_puts_into_containers():
    class Collecting(Block):
        def forward(self, x, found, named, *, given):
            y = super().forward(x + given.by)
            found.append(y)
            named["y"] = y
            return y

    torch.manual_seed(0)
    model = Collecting().eval()
    model.forward = torch.compile(model.forward, backend="eager")
    found, named = [], {}
    with torch.no_grad(), offload(model, "simulated"):
        assert list(inspect.signature(model.forward).parameters) == ["x", "found", "named", "given"]
        y = model(X, found, named, given=Given(by=torch.ones(WIDTH)))
    assert found[0] is y and named["y"] is y and y.device.type == "simulated"


@dataclasses.dataclass
class Given:
    by: torch.Tensor


@pytest.mark.parametrize("compile_", [compile_in_place, compile_class, compile_forward])
def test_copies_of_compiled_models_inside_of_the_block(compile_):
    model = compile_(Decorated(), "eager").eval()
    expected = Decorated().eval()(X)
    with torch.no_grad(), offload(model, "simulated"):
        copied = copy.deepcopy(model)
        torch.testing.assert_close(copied(X).cpu(), expected, rtol=1e-6, atol=1e-6)
    assert isinstance(copied, Decorated)


class Overriding(torch.nn.Module):
    def forward(self, x):
        return super().forward(x) * torch.ones(WIDTH)


def test_lazy_modules_and_overridden_methods_run_uncompiled():
    backend = Backend()
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(WIDTH), torch.nn.ReLU())
    lazy.compile(backend=backend)
    with offload(lazy, "simulated"):
        lazy(X)
        assert backend.calls == 0
        lazy(X)
        assert backend.calls == 1

    model = Decorated().eval()
    compile_class(model, backend)
    model.__class__ = type("Overriding", (Overriding, type(model)), {})
    with torch.no_grad(), offload(model, "simulated"):
        output = model(X)
    assert backend.calls == 1
    torch.testing.assert_close(output.cpu(), Decorated().eval()(X), rtol=1e-6, atol=1e-6)


def test_a_compiled_model_is_freed():
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH))
    model.compile(backend="eager")
    weight = weakref.ref(model[0].weight)
    with offload(model, "simulated"):
        model(X.to("simulated"))
    del model
    torch._dynamo.reset()
    gc.collect()
    assert weight() is None
