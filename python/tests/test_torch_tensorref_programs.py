"""Parts of PyTorch and of other libraries that reach tensors past the intercepted functions: each program runs as on the host."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import X, mlp  # noqa: E402

from cotensor.errors import UnsupportedError  # noqa: E402
from cotensor.tensorref import offload  # noqa: E402

pytestmark = [pytest.mark.usefixtures("memory"), pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")]

STRATEGIES = pytest.mark.parametrize("strategy", ["flow", "genoa", "lru", "cpu"])


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


def calls(model, x):
    for _ in range(2):
        y = model(x)
        y.sin().sum().backward()
    return [y, *[parameter.grad for parameter in model.parameters()]]


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


class Packed(torch.nn.Module):
    """A recurrent layer with sequences of several lengths."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.RNN(16, 4, num_layers=2, batch_first=True)

    def forward(self, x):
        sequences = torch.stack([x, x * 2])
        packed = torch.nn.utils.rnn.pack_padded_sequence(sequences, torch.tensor([2, 3]), batch_first=True, enforce_sorted=False)
        assert packed.batch_sizes.device.type == "cpu"
        result, state = self.layer(packed)
        padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(result, batch_first=True)
        return padded, state, lengths


def sequences(model, x):
    padded, state, lengths = model(x)
    (padded.sin().sum() + state.sum()).backward()
    assert lengths.device.type == "cpu"
    return [padded, state, lengths, *[parameter.grad for parameter in model.parameters()]]


@torch.library.custom_op("cotensor_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * weight


@scaled.register_fake
def _(x, weight):
    return torch.empty_like(x)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gradients(ctx, gradient):
    x, weight = ctx.saved_tensors
    # New tensors where the saved ones show to be.
    ones = torch.ones(weight.shape, device=weight.device)
    zeros = torch.zeros_like(weight)
    return gradient * weight * ones, (gradient * x).sum(0) * torch.empty_like(weight).fill_(1) + zeros


scaled.register_autograd(_gradients, setup_context=_save)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1, 16))

    def forward(self, x):
        return scaled(x, self.weight)


def random_slopes(model, x):
    torch.manual_seed(0)
    y = torch.nn.functional.rrelu(model(x), training=True)
    y.sum().backward()
    return [y, *[parameter.grad for parameter in model.parameters()]]


def observed():
    quantize = torch.ao.quantization.FusedMovingAvgObsFakeQuantize
    return torch.nn.Sequential(*mlp(1), quantize())


def observes(model, x):
    for _ in range(3):
        y = model(x)
    y.sum().backward()
    return [y, *model.buffers(), model[0].weight.grad]


def writes_in_inference(model, x):
    with torch.inference_mode():
        y = model[0](x)
        z = torch.nn.functional.relu(y, inplace=True)
        other = x.clone()
        torch.nn.functional.relu(other, inplace=True)
        return [y, z, other + model[1](other)]


def normalized():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 16))


def two_passes(model, x):
    # The second one writes the statistics, which the first one has saved, without a version.
    first, second = model(x), model(x * 2)
    (first.sin().sum() + second.sum()).backward()
    return [first, second, *model.buffers(), *[parameter.grad for parameter in model.parameters()]]


class Scales(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = mlp(1)[0], torch.nn.Parameter(torch.linspace(0.5, 1, 16))

    def forward(self, x):
        return self.layer(x) * self.scale


def replaces_memory(model, x):
    x = x.detach().requires_grad_()
    y = model(x)
    for parameter in model.parameters():
        parameter.data = torch.full_like(parameter, 2.0)
    y.sin().sum().backward()
    return [y, x.grad, *[parameter.grad for parameter in model.parameters()]]


PROGRAMS = {
    "writes in inference": (mlp, writes_in_inference),
    "two passes": (normalized, two_passes),
    "replaced memory": (Scales, replaces_memory),
    "observed statistics": (observed, observes),
    "random slopes": (mlp, random_slopes),
    "packed sequences": (Packed, sequences),
    "operation in Python": (Scaled, calls),
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
}


@STRATEGIES
@pytest.mark.parametrize("half", [False, True], ids=["ample", "half"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_as_on_the_host(name, half, strategy):
    make, program = PROGRAMS[name]
    expected = program(make(), X)
    model = make()
    sizes = [tensor.nbytes for tensor in model.parameters() if not torch.nn.parameter.is_lazy(tensor)]
    with offload(model, "simulated", strategy=strategy, memory=max(sum(sizes) // 2, 1) if half else 1 << 30):
        found = program(model, X.to("simulated"))
    assert all([tensor.is_cpu for tensor in [*model.parameters(), *model.buffers()]])
    leaves = torch.utils._pytree.tree_leaves
    for one, other in zip(leaves(found), leaves(expected)):
        if isinstance(other, str):
            assert one == other
            continue
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-5, atol=1e-6)


@STRATEGIES
def test_arguments_of_the_device_stay_there(strategy):
    model, total = mlp(2), torch.zeros(16).to("simulated")
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        first = total.add_(model[0].bias)
        second = torch.add(model[1].bias, 1, out=total)
        assert first is total and second is total
        second *= 2
    torch.testing.assert_close(total.cpu(), (model[1].bias.detach() + 1) * 2)


@STRATEGIES
def test_gradients_keep_their_strides(strategy):
    def run(model, x):
        x = x.detach().requires_grad_()
        # The gradient of a sum is one number with strides of zero; kernels round differently for others.
        model(x).sum().backward()
        return [x.grad, *[parameter.grad for parameter in model.parameters()]]

    torch.manual_seed(0)
    x = torch.randn(32, 16)
    expected = run(normalized()[:1], x)
    model = normalized()[:1]
    with offload(model, "simulated", strategy=strategy):
        found = run(model, x.to("simulated"))
    assert [torch.equal(one.cpu(), other) for one, other in zip(found, expected)] == [True] * 3


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
