"""Compiled methods of offloaded modules: one operation each."""

from __future__ import annotations

import copy
import threading

import pytest

torch = pytest.importorskip("torch")

from cotensor.tensorref import Middleware, offload, simulated_device  # noqa: E402

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


def test_compiled_code_on_the_host_and_without_memory(memory):
    model, plain = blocks(2).eval(), blocks(2).eval()
    backend, names = Backend(), Names("host")
    for block in model:
        block.compile(backend=backend)
    with torch.no_grad(), offload(model, "simulated") as session:
        remove = session.use(names)
        output = model(X)
        assert output.device.type == "simulated"
        assert names.seen == [("compiled 0", "host"), ("compiled 1", "host")] and backend.devices == {"cpu"}
        remove()
        memory.fail(1)
        torch.testing.assert_close(model(X).cpu(), output.cpu(), rtol=1e-6, atol=1e-6)
        assert session.stats()["out_of_memory"] >= 1
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
