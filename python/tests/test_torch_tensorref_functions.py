"""Functions that save, write or return tensors in ways of their own: each program runs as on the host."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tensorref_common import STRATEGIES, X, calls, mlp, runs_as_on_host  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from cotensor.tensorref import offload  # noqa: E402
from cotensor.tensorref.random_numbers import draws  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")


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


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Filled(Scales):
    def forward(self, x):
        filled = torch.where(x > 0, self.layer(x), self.scale).masked_fill(x > 0.5, 0.25)
        return Product.apply(filled, self.scale)


def complex_linear():
    torch.manual_seed(0)
    return torch.nn.Linear(16, 16, dtype=torch.cfloat)


def conjugates(model, x):
    y = torch.mv(model.weight.H, x[0] * (1 + 2j)) + model.weight.conj().sum()
    y = y + torch._neg_view(model.bias) + model.bias.imag.sum()
    y.abs().sum().backward()
    return [y, model.weight.grad, model.bias.grad]


def converted(model, x):
    model(x).sum().backward()
    model.double()
    y = model(x.double())
    y.sum().backward()
    return [y, *[parameter.grad for parameter in model.parameters()]]


def new_parameter(model, x):
    """A parameter that no operation has read before a function saves it."""
    made = torch.nn.Parameter(torch.linspace(0.5, 1, 16))
    y = Product.apply(Product.apply(model(x), model[0].bias), made)
    y.sin().sum().backward()
    return [y, made.grad, *[parameter.grad for parameter in model.parameters()]]


PROGRAMS = {
    "new parameter": (mlp, new_parameter),
    "converted": (mlp, converted),
    "conjugates": (complex_linear, conjugates),
    "gradient of a function": (Filled, calls),
    "writes in inference": (mlp, writes_in_inference),
    "two passes": (normalized, two_passes),
    "replaced memory": (Scales, replaces_memory),
    "observed statistics": (observed, observes),
    "random slopes": (mlp, random_slopes),
    "packed sequences": (Packed, sequences),
    "operation in Python": (Scaled, calls),
}


@STRATEGIES
@pytest.mark.parametrize("half", [False, True], ids=["ample", "half"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_run_as_on_the_host(name, half, strategy):
    runs_as_on_host(*PROGRAMS[name], strategy, half)


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


def test_all_sessions_see_writes_without_a_version():
    torch.manual_seed(0)
    norm, x = torch.nn.BatchNorm1d(16), torch.randn(8, 16)
    with offload(norm, "simulated", memory="1MiB"), torch.no_grad():
        for _ in range(2):
            norm(x.to("simulated"))
            norm.eval()(x.to("simulated"))
            norm.train()
        with offload(norm, "simulated", strategy="lru", memory="1MiB"):
            norm(x.to("simulated") * 3)
        found = norm.eval()(x.to("simulated"))
    torch.testing.assert_close(found.cpu(), norm(x).detach())


@STRATEGIES
def test_a_step_that_fails_ends_its_pause(strategy):
    torch.manual_seed(0)
    model = torch.nn.Embedding(5, 8, sparse=True)
    with offload(model, "simulated", strategy=strategy, memory="1MiB"):
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        model(torch.tensor([1]).to("simulated")).sum().backward()
        with pytest.raises(RuntimeError, match="sparse"):
            optimizer.step()
        with torch.no_grad():
            model.weight.lerp_(torch.ones(5, 8, device="simulated"), 1.0)
    assert torch.equal(model.weight, torch.ones(5, 8))


@STRATEGIES
def test_views_find_memory(strategy, memory):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy, memory="1MiB"), torch.no_grad():
        y = model(X.to("simulated"))
        memory.fail(1)
        # A copy, because no strides give this shape.
        z = y.t().reshape(48)
    assert torch.equal(z.cpu(), model(X).detach().t().reshape(48))


@STRATEGIES
def test_tied_parameters_of_the_block_stay_tied(strategy):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy, memory="1MiB"):
        made = torch.nn.Linear(16, 16, device="simulated")
        model.append(made)
        model.append(torch.nn.Linear(16, 16, device="simulated"))
        model[2].weight = made.weight
    assert model[2].weight is model[1].weight and model[1].weight.device.type == "cpu"


@STRATEGIES
def test_optimizers_keep_the_state_of_empty_parameters(strategy):
    model = mlp(1)
    model.empty = torch.nn.Parameter(torch.zeros(0, 16))
    with offload(model, "simulated", strategy=strategy, memory="1MiB"):
        torch.cat([model[0](X.to("simulated")), model.empty]).sum().backward()
        # It makes a state for each parameter, in the block.
        optimizer = torch.optim.Adagrad(model.parameters(), 0.1)
        optimizer.step()
    assert all([one["sum"].is_cpu for one in optimizer.state.values()])


@pytest.mark.parametrize("after", range(8))
def test_statistics_are_written_once_without_memory(after, memory):
    """Converted buffers are on the device, where the operation writes them before it finds no memory."""
    expected = torch.nn.BatchNorm1d(16).bfloat16()
    expected(X.bfloat16())
    model = torch.nn.BatchNorm1d(16)
    with offload(model, "simulated", memory="1MiB"):
        model.bfloat16()
        x = X.bfloat16().to("simulated")
        memory.fail(1, after=after)
        model(x)
        memory.fail(0)
    assert torch.equal(model.running_mean, expected.running_mean) and torch.equal(model.running_var, expected.running_var)


@STRATEGIES
@pytest.mark.parametrize("sessions", [1, 2])
def test_gradients_of_weights_show_the_device(sessions, strategy):
    def program(model, x):
        found = torch.autograd.grad(model(x).sin().sum(), list(model.parameters()), create_graph=True)
        assert {one.device for one in found} == {x.device} == {found[0].square().device}
        torch.stack([one.square().sum() for one in found]).sum().backward()
        # ``gradcheck`` compares devices, too.
        torch.autograd.gradcheck(lambda weight: (x.double() @ weight.double()).sin(), (model[0].weight,), eps=1e-3, atol=1e-2)
        return [*found, *[parameter.grad for parameter in model.parameters()]]

    model = mlp(2)
    with offload(model, "simulated", strategy=strategy), offload(mlp(sessions - 1), "simulated", strategy=strategy):
        found = program(model, X.to("simulated"))
    for one, other in zip(found, program(mlp(2), X)):
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-5, atol=1e-6)


@STRATEGIES
def test_sparse_gradients_have_the_elements_of_the_host(strategy):
    def program(model, x):
        for _ in range(2):
            model(torch.tensor([[7, 1, 3]], device=x.device)).sum().backward()
        return [model.weight.grad._indices(), model.weight.grad._values()]

    runs_as_on_host(lambda: torch.nn.Embedding(10, 16, sparse=True), program, strategy, False)


#: Functions that draw random numbers, of a weight and a result.
DRAWS = {
    "dropout": lambda w, y: F.dropout(w),
    "dropout of a result": lambda w, y: F.dropout(y * 2),
    "rrelu": lambda w, y: F.rrelu(w, training=True),
    "gumbel_softmax": lambda w, y: F.gumbel_softmax(w),
    "attention": lambda w, y: F.scaled_dot_product_attention(w[None], w[None], w[None], dropout_p=0.5),
    "bernoulli": lambda w, y: torch.bernoulli(w.sigmoid(), generator=torch.Generator().manual_seed(1)),
    "like": lambda w, y: torch.rand_like(w) * w,
    "factory": lambda w, y: torch.rand(3, device=y.device) * 2,
}


@STRATEGIES
@pytest.mark.parametrize("after", range(5))
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_drawn_once_without_memory(name, after, strategy, memory):
    def program(model, x, fails):
        y = model(x)
        torch.manual_seed(1)
        if fails:
            memory.fail(1, after=after)
        result = DRAWS[name](model[0].weight, y)
        memory.fail(0)
        return [result, torch.rand(3)]

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        expected = program(mlp(1), X, False)
        model = mlp(1)
        with offload(model, "simulated", strategy=strategy, memory="1MiB"):
            found = program(model, X.to("simulated"), True)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-6, atol=1e-6)


def test_functions_that_draw_are_known():
    draw = [F.dropout, torch.bernoulli, torch.rand, torch.Tensor.normal_, F.scaled_dot_product_attention, torch.lstm]
    draw += [F.gumbel_softmax, F.multi_head_attention_forward, torch.ops.aten.native_dropout, torch.ops.aten.rand.default]
    assert [draws(one) for one in draw] == [True] * len(draw)
    others = [F.linear, F.relu, F.layer_norm, torch.add, torch.Tensor.__add__, torch.Tensor.__getitem__, torch.Tensor.T.__get__]
    assert [draws(one) for one in others] == [False] * len(others)
