"""Parts of PyTorch and of other libraries that reach tensors past the intercepted functions: each program runs as on the host."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import STRATEGIES, X, calls, mlp, runs_as_on_host  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cotensor.errors import UnsupportedError  # noqa: E402
from cotensor.tensorref import offload, simulated_device  # noqa: E402

pytestmark = [pytest.mark.usefixtures("memory"), pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")]


class Cyclic(torch.nn.Module):
    """A module that contains itself, and assigns a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(16, 16)
        self.child = torch.nn.Module()
        self.child.parent = self
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        y = self.child.parent.linear(x)
        self.mean = y.detach().mean(0)
        return y


def cycle(model, x):
    return [model(x), model(x), model.mean]


def scripted():
    return torch.jit.script(mlp(2))


def traced():
    return torch.jit.trace(mlp(2), X)


def part_scripted():
    return torch.nn.Sequential(mlp(1), torch.jit.script(mlp(1, seed=1)), mlp(1))


def new_parameters(model, x):
    new = torch.nn.Linear(16, 16)
    new.weight.data = torch.full_like(model[0].weight, 0.5)
    new.bias.data = x[0].detach().clone()
    model[0].weight.data = torch.full_like(model[1].weight, 0.25)
    y = new(model(x))
    y.sum().backward()
    return [y, new.weight, new.weight.grad, model[0].weight]


def gradients(model, x):
    model(x).sum().backward()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    model[1].weight.grad = x.detach().mean(0, keepdim=True).expand(16, 16).clone()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    torch.optim.SGD(model.parameters(), 0.1).step()
    return [model(x), *model.parameters()]


def saves_on_cpu(model, x):
    with torch.autograd.graph.save_on_cpu():
        y = model(x).sin()
    y.sum().backward()
    return [y, *[parameter.grad for parameter in model.parameters()]]


def vectors(model, x):
    vector = torch.nn.utils.parameters_to_vector(model.parameters())
    model(x)
    torch.nn.utils.vector_to_parameters(vector * 2, model.parameters())
    return [model(x), *model.parameters()]


def swapped(model, x):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with torch.no_grad():
            y = model(x)
        model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()})
        model.to(x.device)
        return [y, model(x), *model.parameters()]
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def lazy():
    return torch.nn.Sequential(torch.nn.LazyLinear(16), torch.nn.LazyBatchNorm1d(), torch.nn.Dropout(0.0))


def trains_lazily(model, x):
    torch.manual_seed(0)
    model(x).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    return [model(x), *model.parameters(), *model.buffers()]


def saved_results(model, x):
    safetensors = pytest.importorskip("safetensors.torch")
    y = model(x).detach()
    files = [safetensors.save({"y": y}), safetensors.save(model.state_dict())]
    return [sorted(safetensors.load(file).items()) for file in files]


def exported(model, x):
    """Exports are modules of the host, with the weights of the model."""
    programs = [torch.export.export(model, (given,), strict=strict) for strict in (False, True) for given in (X, x)]
    assert all([tensor.is_cpu for program in programs for tensor in program.constants.values()])
    return [model(x), *[program.module()(X) for program in programs], model(x)]


class Checkpointed(torch.nn.Module):
    """Checkpoints of functions with weights."""

    def __init__(self, reentrant):
        super().__init__()
        self.layers, self.reentrant = mlp(3), reentrant

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(lambda y, layer=layer: layer(y).tanh(), x, use_reentrant=self.reentrant)
        return self.layers[0](x)


def grad_of_checkpoints(model, x):
    found = [torch.autograd.grad(model(x).sin().sum(), list(model.parameters())) for _ in range(3)]
    for _ in range(3):
        model(x).sin().sum().backward()
    return [found, [parameter.grad for parameter in model.parameters()]]


def below_a_mode(model, x):
    """Another mode of the thread does not keep the functions of the backward pass from the session."""
    with torch.device("cpu"):
        model(x).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def converted(model, x):
    model(x).sum().backward()
    model.to(x.device, torch.float64)
    y = model(x.double())
    y.sum().backward()
    return [y, *[parameter.grad for parameter in model.parameters()]]


PROGRAMS = {
    "cycle": (Cyclic, cycle),
    "scripted": (scripted, calls),
    "traced": (traced, calls),
    "scripted part": (part_scripted, calls),
    "new parameters": (mlp, new_parameters),
    "gradients": (mlp, gradients),
    "save on CPU": (mlp, saves_on_cpu),
    "vectors": (mlp, vectors),
    "swapped": (mlp, swapped),
    "lazy": (lazy, trains_lazily),
    "safetensors": (mlp, saved_results),
    "checkpoint": (lambda: Checkpointed(False), grad_of_checkpoints),
    "checkpoint below a mode": (lambda: Checkpointed(False), below_a_mode),
    "converted": (mlp, converted),
    "exported": (mlp, exported),
}


@STRATEGIES
@pytest.mark.parametrize("half", [False, True], ids=["ample", "half"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_as_on_the_host(name, half, strategy):
    runs_as_on_host(*PROGRAMS[name], strategy, half)


@STRATEGIES
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_backward_pass_inside_of_another_one_keeps_its_failures(reentrant, strategy):
    model = torch.nn.Sequential(Checkpointed(reentrant), torch.nn.Linear(16, 16))
    with offload(model, "simulated", strategy=strategy):
        y = model(X.to("simulated").requires_grad_())
        with torch.no_grad():
            model[1].weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@STRATEGIES
@pytest.mark.parametrize("compiler", ["script", "trace"])
def test_torchscript_inside_of_the_block_is_an_error(compiler, strategy):
    model = mlp(1)
    arguments = [X] if compiler == "trace" else []
    with offload(model, "simulated", strategy=strategy):
        with pytest.raises(UnsupportedError, match=f"torch.jit.{compiler}: call it before the block"):
            getattr(torch.jit, compiler)(model, *arguments)
    assert getattr(torch.jit, compiler)(model, *arguments)(X).shape == (3, 16)


def test_data_parallel_is_an_error():
    with pytest.raises(UnsupportedError, match="DataParallel"):
        offload(torch.nn.Sequential(torch.nn.DataParallel(mlp(1))), "simulated")


@STRATEGIES
def test_data_parallel_inside_of_the_block_is_an_error(strategy):
    simulated_device(count=2)
    model = mlp(1)
    around = torch.nn.DataParallel(model)
    with offload(model, "simulated", strategy=strategy):
        x = X.to("simulated")
        for parallel in (around, torch.nn.DataParallel(model)):
            with pytest.raises(UnsupportedError, match="offload its module to a list of devices"):
                parallel(x)
        with pytest.raises(UnsupportedError, match="offload its module to a list of devices"):
            torch.nn.parallel.data_parallel(model, x, [0, 1])


@pytest.mark.parametrize("strategy", [None, "genoa", "flow"])
def test_random_numbers_of_the_device_have_a_state(strategy):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy) if strategy else contextlib.nullcontext():
        state = torch.simulated.get_rng_state()
        first = torch.rand(3, device="simulated")
        torch.simulated.set_rng_state(state)
        assert torch.equal(torch.rand(3, device="simulated").cpu(), first.cpu())
        with torch.random.fork_rng():
            torch.rand(3)


@pytest.mark.parametrize("strategy", [None, "genoa", "flow"])
def test_streams_of_the_simulated_device_are_errors(strategy):
    """It has one order of operations, which PyTorch calls the stream 0. PyTorch raises an error for all other
    functions of streams."""
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy) if strategy else contextlib.nullcontext():
        model(X)
        stream = torch.accelerator.current_stream()
        assert (stream.device.type, stream.stream_id) == ("simulated", 0)
        with pytest.raises(RuntimeError, match="doesn't support synchronizing"):
            torch.accelerator.synchronize()
        for name in ("current_stream", "Stream", "stream", "Event"):
            with pytest.raises(AttributeError, match=f"'SimulatedDevice' object has no attribute '{name}'"):
                getattr(torch.simulated, name)
        # The session ends as usual.
        y = model(X.to(model[0].weight.device))
    torch.testing.assert_close(y.detach().cpu(), model(X).detach())
