"""What operations save for the backward pass: the memory that PyTorch saves, so that writes without a version are seen."""

from __future__ import annotations

import contextlib
import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import X, mlp  # noqa: E402

from cotensor.tensorref import offload, simulated_device  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")

#: Where operations run: by the strategy, or on the host for want of memory.
PLACES = [("flow", "1MiB"), ("genoa", "1MiB"), ("lru", "1MiB"), ("pinned", "1MiB"), ("flow", 1), ("genoa", 1), ("cpu", "1MiB")]
places = pytest.mark.parametrize(("strategy", "room"), PLACES)


def statistics(tensor):
    """Writes a tensor without a version, as PyTorch's normalization does."""
    values = torch.linspace(0, 3, 32, device=tensor.device).reshape(2, 16)
    torch.nn.functional.batch_norm(values, tensor.detach(), torch.ones(16, device=tensor.device), training=True, momentum=0.5)


def data(tensor):
    tensor.data.mul_(2)


def part(tensor):
    tensor.data[3:].zero_()


WRITES = {"statistics": statistics, "data": data, "part": part}


def normalized(weight, mean, write):
    """The gradient of an operation that has saved statistics, of a tensor that is not a weight."""
    x = X.to(mean.device)
    y = torch.nn.functional.batch_norm(x, mean, torch.ones(16, device=mean.device), weight, training=False)
    write(mean)
    y.square().sum().backward()
    return weight.grad


def multiplied(weight, factor, write):
    y = weight * factor
    write(factor)
    y.sum().backward()
    return weight.grad


def expanded(weight, factor, write):
    """With a view as the argument, and one that the operation itself makes."""
    y = torch.nn.functional.linear(factor.view(1, 1, 16).expand(1, 3, 16), weight.expand(16, 16))
    y = y + (weight[:8].sin().sum() * factor.view(4, 4).t()[1:]).sum()
    y = y + torch.matmul(factor.view(1, 4, 4).transpose(1, 2), weight.view(4, 4)).sum()
    write(factor)
    y.sum().backward()
    return weight.grad


def exponential(weight, factor, write):
    """With the result saved."""
    y = weight.exp() * 1
    z = (y * factor[:1]).sigmoid()
    write(z)
    z.sum().backward()
    return weight.grad


PROGRAMS = {"normalized": normalized, "multiplied": multiplied, "expanded": expanded, "exponential": exponential}


@pytest.mark.parametrize("program", sorted(PROGRAMS))
@places
def test_a_write_without_a_version_reaches_the_backward_pass(strategy, room, program):
    found, expected = {}, {}
    for write, change in WRITES.items():
        for device in ("cpu", "simulated"):
            expected[write, device] = PROGRAMS[program](mlp(1)[0].bias, torch.linspace(-1, 2, 16), change)
            model = mlp(1)
            with offload(model, "simulated", strategy=strategy, memory=room):
                factor = torch.linspace(-1, 2, 16).to(device)
                found[write, device] = PROGRAMS[program](model[0].bias, factor, change)
    torch.testing.assert_close(found, expected)


class Multiplied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, factor):
        ctx.save_for_backward(weight, factor)
        return weight * factor

    @staticmethod
    def backward(ctx, gradient):
        weight, factor = ctx.saved_tensors
        return gradient * factor, gradient * weight


@places
def test_a_function_with_a_backward_pass_of_its_own_saves_weights(strategy, room):
    def run(model, x, change):
        y = Multiplied.apply(model[0].bias, x)
        change(model[0].bias)
        y.sum().backward()
        return x.grad.cpu(), model[0].bias.grad

    for change in WRITES.values():
        expected = run(mlp(1), torch.ones(16).requires_grad_(), change)
        model = mlp(1)
        with offload(model, "simulated", strategy=strategy, memory=room):
            found = run(model, torch.ones(16).to("simulated").requires_grad_(), change)
        torch.testing.assert_close(found, expected)


@places
def test_another_session_sees_what_an_operation_saved(strategy, room):
    """PyTorch asks the session that was entered last, also for operations of an earlier one."""
    for change in WRITES.values():
        expected = normalized(mlp(1)[0].bias, torch.zeros(16), change)
        model = mlp(1)
        with contextlib.ExitStack() as stack:
            stack.enter_context(offload(model, "simulated", strategy=strategy, memory=room))
            # Results of all sessions are on one side.
            last = "genoa" if strategy == "genoa" else "flow"
            stack.enter_context(offload(mlp(1), "simulated", strategy=last, memory="1MiB"))
            found = normalized(model[0].bias, torch.zeros(16), change)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("write", sorted(WRITES))
def test_another_device_sees_what_an_operation_saved(write):
    simulated_device("1MiB", count=2)

    def run(model, factor):
        for _ in range(4):
            first = model[0](factor[None])
            y = model[1](first) * model[1].bias * factor
        WRITES[write](factor)
        y.sum().backward()
        return model[1].bias.grad

    expected = run(mlp(2), torch.linspace(-1, 2, 16))
    model = mlp(2)
    with offload(model, ["simulated:0", "simulated:1"], strategy="lru", memory=1500):
        found = run(model, torch.linspace(-1, 2, 16).to("simulated"))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("strategy", ["flow", "genoa", "lru", "pinned"])
def test_copies_of_arguments_leave_the_device(memory, strategy):
    """A tensor of the host that an operation saves waits there, as weights do."""
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy, memory="1MiB"):
        x = torch.ones(1 << 14, 16)
        model(x)
        before = memory.allocated_bytes
        y = model(x)
        kept = memory.allocated_bytes - before - (0 if y.is_cpu else y.nbytes)
        y.sum().backward()
        assert kept < x.nbytes // 2


@pytest.mark.parametrize("change", ["argument", "result", "empty"])
@places
def test_a_change_of_a_tensor_of_the_device_is_an_error(strategy, room, change):
    """One that the program itself has there, also with ``genoa``, and one without elements."""
    model = torch.nn.MaxPool1d(2, return_indices=True)
    x, factor = torch.linspace(-1, 1, 16).view(2, 2, 4).to("simulated").requires_grad_(), torch.ones(2, 2, 2).to("simulated")
    with offload(model, "simulated", strategy=strategy, memory=room):
        y, indices = model(x)
        y = y * factor
        if change == "empty":
            weight, none = torch.nn.Parameter(torch.ones(5, 5, 0)), torch.ones(0, 5).to("simulated").requires_grad_()
            y = y.sum() + (weight @ none).sum()
            with torch.no_grad():
                weight.mul_(2)
        else:
            (factor if change == "argument" else indices).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@places
def test_parts_of_complex_weights_are_saved(strategy, room):
    """Convolutions of complex tensors save the real and imaginary parts of a weight, which have its memory and another dtype."""
    x = torch.linspace(0, 3, 10).reshape(1, 2, 5) * (1 - 2j)

    def gradient(run, write):
        torch.manual_seed(0)
        model = torch.nn.Conv1d(2, 3, 2, dtype=torch.complex64)
        with run(model) as device:
            y = model(x.to(device))
            write(model.weight)
            y.abs().sum().backward()
        return model.weight.grad

    @contextlib.contextmanager
    def offloaded(model):
        with offload(model, device=simulated_device(), memory=room, strategy=strategy):
            yield "simulated"

    def doubled(weight):
        with torch.no_grad():
            weight.mul_(2)

    host = contextlib.nullcontext
    for write in (lambda _: None, lambda weight: data(weight)):
        assert torch.equal(gradient(offloaded, write), gradient(lambda _: host("cpu"), write))
    for run in (lambda _: host("cpu"), offloaded):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(run, doubled)


@places
def test_conjugate_tensors_of_the_device_are_saved(strategy, room):
    def gradient(x):
        (x.conj() * x).abs().sum().backward()
        return x.grad.cpu()

    values = torch.complex(torch.linspace(-1, 1, 8), torch.linspace(0, 2, 8))
    expected = gradient(values.clone().requires_grad_())
    x = values.to("simulated").requires_grad_()
    with offload(mlp(1), "simulated", strategy=strategy, memory=room):
        found = gradient(x)
    torch.testing.assert_close(found, expected)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda module: pickle.loads(pickle.dumps(module))}


@pytest.mark.parametrize("copied", sorted(COPIES))
@pytest.mark.parametrize("affine", [False, True])
@places
def test_a_copied_model_that_moves_keeps_the_buffers_that_a_backward_pass_needs(strategy, room, affine, copied):
    def program(model, x):
        module = COPIES[copied](model)[1]
        statistics = module.running_mean
        y = module.eval()(x)
        # On any device, it is there already.
        module.to(x.device)
        module.train()(x.detach() * 3 + 1)
        y.square().sum().backward()
        assert module.running_mean is statistics and statistics.device == x.device
        return [x.grad, statistics, *[parameter.grad for parameter in module.parameters()]]

    def model():
        return torch.nn.Sequential(mlp(1), torch.nn.BatchNorm1d(16, affine=affine))

    expected = program(model(), X.clone().requires_grad_())
    offloaded = model()
    with offload(offloaded, "simulated", strategy=strategy, memory=room):
        found = [tensor.cpu() for tensor in program(offloaded, X.to("simulated").requires_grad_())]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@places
def test_a_buffer_of_the_host_that_a_module_moves_is_a_copy(strategy, room):
    def program(model, x):
        values = torch.ones(16)
        model[0].register_buffer("factor", values)
        model.to(x.device)
        values.zero_()
        return x * model[0].factor

    assert torch.equal(program(mlp(1).to("simulated"), X.to("simulated")).cpu(), X)
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy, memory=room):
        assert torch.equal(program(model, X.to("simulated")).cpu(), X)
