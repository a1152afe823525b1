"""What belongs to a model stays on the host, whatever the program does with it: new memory, copies, buffers, optimizers."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import STRATEGIES, X, mlp  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

from cotensor.tensorref import disable, enable, offload  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")



def is_on_host(model):
    return all(tensor.is_cpu for tensor in [*model.parameters(), *model.buffers()])


def set_memory(model):
    model.weight.set_(torch.full((16, 16), 0.5))


def swap(model):
    torch.utils.swap_tensors(model.weight, torch.nn.Parameter(torch.full((16, 16), 0.5)))


def assign(model):
    model.weight = torch.nn.Parameter(torch.full((16, 16), 0.5))


@STRATEGIES
@pytest.mark.parametrize("change", [set_memory, swap, assign])
def test_new_memory_of_a_weight_is_used(change, strategy):
    model = torch.nn.Linear(16, 16)
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        for _ in range(3):
            model(X)
        change(model)
        y = model(X)
    assert (model.weight == 0.5).all()
    torch.testing.assert_close(y.cpu(), model(X), rtol=1e-6, atol=1e-6)


@STRATEGIES
@pytest.mark.parametrize("change", [set_memory, swap])
def test_views_and_addresses_are_those_of_new_memory(change, strategy):
    model = torch.nn.Linear(16, 16)
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        model(X)
        change(model)
        view, alias = model.weight.mT, model.weight.numpy()
        assert view.device.type == "simulated"
        model(X)
        # The address was given out before the next use.
        alias[:] = 0.25
        y = model(X)
    torch.testing.assert_close(y.cpu(), model(X), rtol=1e-6, atol=1e-6)


@STRATEGIES
def test_operations_leave_no_cycles(strategy):
    model, saved = mlp(2), mlp(2, seed=1).state_dict()
    with offload(model, "simulated", strategy=strategy):
        model(X)
        gc.collect()
        model.load_state_dict(saved)
        model(X)
        assert gc.collect() == 0


def test_a_weight_that_moved_within_its_memory_is_copied_once():
    model = torch.nn.Linear(16, 16, bias=False)
    with offload(model, "simulated", strategy="lru") as session, torch.no_grad():
        model(X)
        model.weight.data = model.weight.data[1:]
        model(X)
        copies = session.stats()["copies"]
        for _ in range(5):
            y = model(X)
        assert session.stats()["copies"] == copies
    torch.testing.assert_close(y.cpu(), model(X), rtol=1e-6, atol=1e-6)


@STRATEGIES
def test_a_parametrized_weight_is_assigned_and_its_parametrization_removed(strategy):
    model = parametrizations.orthogonal(torch.nn.Linear(16, 16))
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        for _ in range(3):
            model(X)
        model.weight = torch.eye(16)
        y = model(X)
        torch.testing.assert_close(y.cpu(), X + model.bias.cpu(), rtol=1e-5, atol=1e-5)
        parametrize.remove_parametrizations(model, "weight")
        z = model(X)
    assert is_on_host(model)
    torch.testing.assert_close(z.cpu(), model(X), rtol=1e-5, atol=1e-5)


class Mean(torch.nn.Module):
    """Keeps the mean of its last result."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        y = self.linear(x) - self.mean
        self.mean = y.detach().mean(0)
        return y


@STRATEGIES
def test_what_a_model_assigns_is_on_the_host_after_the_block(strategy):
    torch.manual_seed(0)
    model = Mean()
    plain = copy.deepcopy(model)
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        for _ in range(3):
            y = model(X)
        model.half()
        model.double()
    for _ in range(3):
        expected = plain(X)
    assert is_on_host(model)
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert model.mean.dtype == torch.float64


@STRATEGIES
def test_a_module_that_moves_in_the_block_keeps_its_parameters_on_the_host(strategy):
    # Otherwise an optimizer has parameters on two devices, and a step that fails for one of them has stepped the others.
    def program(model, x, device):
        new = mlp(2, seed=1)
        new[1].weight = new[0].weight
        before = list(new.parameters())
        new.to(device)
        assert {tensor.device for tensor in new.parameters()} == {x.device}
        model(x).sum().backward()
        optimizer = torch.optim.SGD([*new.parameters(), *model.parameters()], 0.1, momentum=0.9, fused=True)
        optimizer.step()
        model.append(new)
        model(x).sum().backward()
        with pytest.raises(TypeError):
            # Of all parameters, some have no momentum yet.
            optimizer.step()
        return model(x), [one is other for one, other in zip(before, new.parameters())]

    expected, kept = program(mlp(2), X, "cpu")
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy):
        found = program(model, X.to("simulated"), "simulated")
    assert is_on_host(model) and found[1] == kept
    torch.testing.assert_close(found[0].detach().cpu(), expected.detach(), rtol=1e-6, atol=1e-6)


@STRATEGIES
def test_copies_of_a_model_are_on_the_host_and_run(strategy):
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy):
        model(X)
        copied = copy.deepcopy(model)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        averaged.update_parameters(model)
        outputs = [copied(X).detach().cpu(), averaged(X).detach().cpu()]
    assert is_on_host(copied) and is_on_host(averaged)
    assert copied[0].weight.data_ptr() != model[0].weight.data_ptr()
    for output in outputs:
        torch.testing.assert_close(output, model(X).detach(), rtol=1e-6, atol=1e-6)
    assert copy.deepcopy(model[0].weight).equal(model[0].weight)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


@STRATEGIES
def test_functions_with_a_backward_pass_of_their_own_train_weights(strategy):
    def gradients(model, x, y):
        (Product.apply(model[0](x), model[1].weight).sin() + Product.apply(y, model[1].weight)).sum().backward()
        return [y.grad, *[parameter.grad for parameter in list(model.parameters())[:3]]]

    model = mlp(2)
    with offload(model, "simulated", strategy=strategy):
        # Inputs may be on either side.
        found = gradients(model, X.to("simulated"), X.clone().requires_grad_())
    for one, other in zip(found, gradients(mlp(2), X, X.clone().requires_grad_())):
        assert one.is_cpu
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@STRATEGIES
def test_a_change_of_a_weight_that_a_function_saved_is_an_error(strategy):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy):
        y = Product.apply(X.to("simulated"), model[0].weight)
        with torch.no_grad():
            model[0].weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@STRATEGIES
def test_an_error_of_the_backward_pass_is_not_kept(strategy):
    model = torch.nn.Linear(16, 16)

    def fail():
        y = Product.apply(X.to("simulated").requires_grad_(), model.weight)
        with torch.no_grad():
            set_memory(model)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    with offload(model, "simulated", strategy=strategy):
        fail()
        gc.collect()
        # PyTorch swaps no tensor that a graph has.
        swap(model)


@STRATEGIES
def test_functions_with_a_backward_pass_of_their_own_are_refused_in_transforms_as_on_the_host(strategy):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy):
        with pytest.raises(RuntimeError, match="it must override the setup_context staticmethod"):
            torch.func.grad(lambda weight: Product.apply(X.to("simulated"), weight).sum())(model[0].weight)


@STRATEGIES
@pytest.mark.parametrize("name", "Adadelta Adagrad Adam AdamW Adamax ASGD LBFGS NAdam RAdam RMSprop Rprop SGD".split())
def test_optimizers_step_with_a_closure(name, strategy):
    def losses(model, x):
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.001)

        def closure():
            optimizer.zero_grad()
            loss = (model(x) ** 2).sum()
            loss.backward()
            return loss

        return [float(optimizer.step(closure)) for _ in range(3)]

    model = mlp(2)
    with offload(model, "simulated", strategy=strategy):
        found = losses(model, X.to("simulated"))
    assert found == pytest.approx(losses(mlp(2), X), rel=1e-4)
    assert found[0] > found[2]


@STRATEGIES
def test_the_graph_of_a_closure_ends_with_the_step(strategy):
    model = mlp(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def step(x, graphs):
        def closure():
            loss = (model(x) ** 2).sum()
            graphs.append(weakref.ref(loss))
            loss.backward()
            return loss

        optimizer.step(closure)

    graphs = []
    with offload(model, "simulated", strategy=strategy):
        x = X.to("simulated")
        gc.disable()
        try:
            step(x, graphs)
            assert [graph() for graph in graphs] == [None]
        finally:
            gc.enable()


@STRATEGIES
@pytest.mark.parametrize("options", [{"capturable": True}, {"capturable": True, "foreach": True}, {"fused": True}], ids=str)
def test_steps_equal_those_of_the_device_and_reach_the_next_operation(options, strategy):
    def losses(model, x):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)

        def closure():
            optimizer.zero_grad()
            loss = (model(x) ** 2).sum()
            loss.backward()
            return loss

        found = []
        for number in range(3):
            found.append(float(optimizer.step(closure).detach()))
            found.append(float(model(x).sum().detach()))
            if number == 1:
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                optimizer = torch.optim.AdamW(model.parameters(), **options)
                optimizer.load_state_dict(torch.load(file))
        return found

    x = X.to("simulated")
    # The host has no ``capturable``.
    plain = losses(mlp(2), X) if "fused" in options else losses(mlp(2).to("simulated"), x)
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy):
        assert losses(model, x) == plain
    assert is_on_host(model)


def test_many_sessions_see_each_function_once():
    models = [mlp(1) for _ in range(12)]
    for model in models:
        enable(model, "simulated")
    try:
        # Sessions that intercept each other's functions would take hours for this.
        outputs = [model(X) for model in models]
        assert all(output.device.type == "simulated" for output in outputs)
        sum(output.sum() for output in outputs).backward()
    finally:
        for model in reversed(models):
            disable(model)
    for model, output in zip(models, outputs):
        torch.testing.assert_close(output.detach().cpu(), model(X).detach(), rtol=1e-6, atol=1e-6)
        assert model[0].weight.grad is not None


@STRATEGIES
def test_functions_that_return_an_argument_give_that_argument(strategy):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy):
        weight = model[0].weight
        assert weight.float() is weight and weight.contiguous() is weight and torch.positive(weight) is weight
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            torch.positive(weight).mul_(2)


@STRATEGIES
@pytest.mark.parametrize("function", ["relu", "elu", "celu", "leaky_relu", "hardtanh"])
def test_functions_in_place_keep_their_gradient(function, strategy):
    def gradient(model, x):
        y = model(x) * 1.0
        getattr(torch.nn.functional, function)(y, inplace=True)
        y.sum().backward()
        return y.detach().cpu(), model[0].weight.grad

    model = mlp(1)
    with offload(model, "simulated", strategy=strategy):
        found = gradient(model, X.to("simulated"))
    for one, other in zip(found, gradient(mlp(1), X)):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@STRATEGIES
def test_tensors_without_elements_show_the_device(strategy):
    model = torch.nn.Linear(4, 0)
    other = torch.nn.Linear(4, 4)
    with offload([model, other], "simulated", strategy=strategy):
        assert model.weight.device.type == other.weight.narrow(0, 0, 0).device.type == "simulated"
        assert (model.weight * 2).device.type == "simulated"
        with torch.no_grad():
            assert other.weight.view(torch.int32).device.type == "simulated"
        y = model(X[:, :4].to("simulated"))
        assert y.shape == (3, 0) and y.device.type == "simulated"


@STRATEGIES
def test_results_with_names_and_lazy_modules(strategy):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        weight = model[0].weight
        out = weight.sort()
        again = torch.sort(weight, descending=True, out=type(out)(tuple(out)))
        assert torch.equal(out.values.cpu(), weight.cpu().sort(descending=True).values)
        assert torch.equal(again.values.cpu(), out.values.cpu())
        lazy = torch.nn.LazyLinear(4)
        lazy.load_state_dict(lazy.state_dict())
        assert lazy(X).shape == (3, 4)


@STRATEGIES
def test_algorithms_are_those_of_parameters(strategy):
    # Without gradients, matmul folds batches by whether an argument requires one.
    torch.manual_seed(0)
    model, x = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(10))]), torch.randn(5, 5, 10, 5)
    with torch.no_grad():
        expected = model[0] @ x
        with offload(model, "simulated", strategy=strategy):
            found = model[0] @ x.to("simulated")
    assert torch.equal(found.cpu(), expected)


def test_conjugates_on_the_simulated_device():
    values = torch.tensor([1 + 2j, -3 + 1j], requires_grad=True)
    weight = torch.tensor([2 - 1j, 1 + 1j])
    device = values.detach().to("simulated").requires_grad_()
    functions = (lambda x, w: x.conj() * w, lambda x, w: x * x.conj(), lambda x, w: x.conj().imag, lambda x, w: (x * w).log1p())
    for function in functions:
        expected, found = function(values, weight), function(device, weight.to("simulated"))
        assert torch.equal(found.detach().cpu(), expected.detach().resolve_neg())
        (one,) = torch.autograd.grad(expected.abs().sum(), values)
        (other,) = torch.autograd.grad(found.abs().sum(), device)
        torch.testing.assert_close(other.cpu(), one)


@STRATEGIES
def test_the_backward_pass_of_overlapping_views(strategy):
    def gradient(window, samples):
        torch.stft(samples[0], 10, return_complex=True, window=window).abs().sum().backward()
        return samples[0].grad

    def model():
        return torch.nn.ParameterList([torch.nn.Parameter(torch.linspace(-1, 1, 20))])

    samples = model()
    with offload(samples, "simulated", strategy=strategy):
        found = gradient(torch.ones(10), samples)
    torch.testing.assert_close(found, gradient(torch.ones(10), model()))


@pytest.mark.parametrize("strategy", ["flow", "genoa", "lru", "cpu"])
@pytest.mark.parametrize("room", ["1MiB", 1])
def test_hooks_of_weights_get_and_return_gradients_of_the_host(strategy, room, memory):
    def gradient(model, x):
        weight = model[0].weight
        weight.register_hook(lambda gradient: gradient * weight)
        model(x).sum().backward()
        return weight.grad

    expected = gradient(mlp(2), X.clone())
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy, memory=room):
        found = gradient(model, X.to("simulated"))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@STRATEGIES
def test_states_that_an_optimizer_has_without_a_step_are_on_the_host(strategy):
    model = mlp(1)
    optimizer = torch.optim.Adam(model.parameters())
    model(X).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    with offload(model, "simulated", strategy=strategy):
        model(X)
        optimizer.load_state_dict(saved)
        adagrad = torch.optim.Adagrad(model.parameters())
    for one in (optimizer, adagrad):
        assert all([tensor.is_cpu for state in one.state.values() for tensor in state.values()])
        one.step()


@STRATEGIES
def test_learning_rates_may_be_on_the_device(strategy):
    def train(model, device):
        model = model if device is None else model.to(device)
        rate = torch.tensor(0.1, device="simulated")
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)
        for fails in (False, True, False):
            model(X.to("simulated")).sum().backward()
            if fails:
                with pytest.raises(ZeroDivisionError):
                    optimizer.step(lambda: 1 / 0)
            else:
                optimizer.step()
                assert optimizer.param_groups[0]["lr"] is rate
        return [parameter.detach().cpu() for parameter in model.parameters()]

    model = mlp(1)
    expected = train(mlp(1), "simulated")
    with offload(model, "simulated", strategy=strategy):
        found = train(model, None)
    assert all([torch.equal(one, other) for one, other in zip(found, expected)])
