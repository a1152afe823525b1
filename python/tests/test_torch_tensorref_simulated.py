"""The simulated accelerator: devices do not mix, memory has a limit, copies are counted."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from cotensor.errors import InvalidError  # noqa: E402
from cotensor.tensorref import offload  # noqa: E402
from cotensor.tensorref.simulated import simulated_device  # noqa: E402


def equal(a, b):
    assert a.device.type == "simulated" and b.device.type == "cpu"
    assert torch.equal(a.cpu(), b)


def test_operations_of_two_devices_fail(memory):
    host = torch.randn(3, 4)
    device = host.to("simulated")
    assert device.device == torch.device("simulated", 0)
    for operation in (torch.add, F.linear, lambda a, b: torch.cat([a, b])):
        with pytest.raises(RuntimeError, match="same device"):
            operation(device, host)
        with pytest.raises(RuntimeError, match="same device"):
            operation(host, device)
    with pytest.raises(RuntimeError, match="same device"):
        host.add_(device)
    equal(device + torch.tensor(2.0), host + 2)
    with pytest.raises(TypeError, match="Tensor.cpu"):
        device.numpy()
    with pytest.raises(TypeError, match="Tensor.cpu"):
        import numpy

        numpy.asarray(device)


def test_values_views_and_operations_in_place(memory):
    host = torch.arange(12.0).reshape(3, 4)
    device = torch.arange(12.0, device="simulated").reshape(3, 4)
    equal(device, host)
    view = device.t()[1:]
    view.mul_(2)
    host.t()[1:].mul_(2)
    equal(device, host)
    assert device.tolist() == host.tolist() and device.sum().item() == host.sum().item()
    assert str(device).replace(", device='simulated:0'", "") == str(host)
    for change in (lambda t: t.unsqueeze_(0), lambda t: t.t_(), lambda t: t.resize_(2, 2)):
        one, other = device.clone(), host.clone()
        change(one), change(other)
        assert one.shape == other.shape
        equal(one, other)
    one = torch.empty(0, device="simulated")
    torch.add(device, 1, out=one)
    equal(one, host + 1)
    device[device > 5] = 0
    host[host > 5] = 0
    equal(device, host)
    equal(device[torch.tensor([2, 0])], host[[2, 0]])


def test_modules_train_as_on_the_cpu(memory):
    torch.manual_seed(0)
    host = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    device = copy.deepcopy(host).to("simulated")
    x = torch.randn(5, 4)
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.1) for module in (host, device)]
    for _ in range(3):
        for module, optimizer, at in zip((host, device), optimizers, ("cpu", "simulated")):
            optimizer.zero_grad()
            module(x.to(at)).square().mean().backward()
            optimizer.step()
    for one, other in zip(device.parameters(), host.parameters()):
        assert isinstance(one, torch.nn.Parameter)
        equal(one.detach(), other.detach())
    again = copy.deepcopy(device)
    equal(again[0].weight.detach(), host[0].weight.detach())
    again.load_state_dict(host.state_dict())
    assert next(again.cpu().parameters()).device.type == "cpu"


def test_data_is_replaced(memory):
    tensor = torch.ones(3, device="simulated")
    before = memory.allocated_bytes
    tensor.data = torch.arange(4.0, device="simulated")
    equal(tensor, torch.arange(4.0))
    assert memory.allocated_bytes == before + 4
    tensor.data.mul_(2)
    equal(tensor * 1, torch.arange(4.0) * 2)
    module = torch.nn.Linear(3, 2)
    expected = copy.deepcopy(module).half()(torch.ones(1, 3).half())
    equal(module.to("simulated").half()(torch.ones(1, 3, device="simulated").half()), expected)


def test_parameters_are_made_by_the_type_of_another_one(memory):
    parameter = torch.nn.Linear(2, 2).to("simulated").weight
    for value in (torch.ones(2, 2), torch.ones(2, 2, device="simulated"), parameter):
        for trained in (True, False):
            made = type(parameter)(value, requires_grad=trained)
            assert isinstance(made, torch.nn.Parameter) and made.device == value.device and made.requires_grad is trained
            assert made.cpu().tolist() == value.cpu().tolist()


@pytest.mark.parametrize("strategy", [None, "genoa", "flow"])
def test_autocast_computes_in_its_dtype(strategy, memory):
    torch.manual_seed(0)
    host = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    device = copy.deepcopy(host) if strategy else copy.deepcopy(host).to("simulated")
    x = torch.rand(5, 8)
    outputs = []
    for module, at in ((host, "cpu"), (device, "simulated")):
        inside = offload(module, at, strategy=strategy) if strategy and at == "simulated" else contextlib.nullcontext()
        with inside:
            with torch.autocast(at, dtype=torch.bfloat16):
                outputs.append(module(x.to(at)))
                exponential = torch.exp(outputs[-1])
            outputs[-1].float().square().mean().backward()
    assert outputs[0].dtype == outputs[1].dtype == torch.bfloat16 and exponential.dtype == torch.float32
    torch.testing.assert_close(outputs[1].detach().cpu(), outputs[0].detach(), rtol=0.02, atol=0.02)
    for one, other in zip(device.parameters(), host.parameters()):
        assert one.grad.dtype == torch.float32
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=0.05, atol=0.02)


def test_inference_mode_makes_views_of_other_tensors(memory):
    x = torch.ones(2, 3, device="simulated")
    with torch.inference_mode():
        view, result = x[None], x + 1
        assert view.shape == (1, 2, 3) and not view.is_inference()
        assert result.is_inference() and result.t().is_inference()
    assert (view + 1).sum().item() == 12


def test_memory_has_a_limit_and_returns(memory):
    memory.limit_bytes = memory.allocated_bytes + 4096
    before = memory.allocated_bytes
    first = torch.zeros(512, device="simulated")
    assert memory.allocated_bytes == before + 2048
    view = first[:10]
    del first
    assert memory.allocated_bytes == before + 2048
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1024, device="simulated")
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1024).to("simulated")
    del view
    assert memory.allocated_bytes == before
    kept = torch.zeros(1024, device="simulated")
    assert memory.peak_bytes == before + 4096
    del kept


def test_an_allocation_can_fail_on_purpose(memory):
    memory.fail(1)
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(4, device="simulated")
    assert torch.zeros(4, device="simulated").sum().item() == 0


def test_a_failed_allocation_keeps_no_tensor(memory):
    before = memory.allocated_bytes

    def program():
        tensor = torch.ones(64, device="simulated")
        memory.fail(1)
        with contextlib.suppress(torch.OutOfMemoryError):
            tensor + 1

    gc.disable()
    try:
        program()
        assert memory.allocated_bytes == before
    finally:
        gc.enable()


def test_a_backward_pass_without_memory_fails_after_it(memory):
    tensor = torch.ones(64, 64, device="simulated", requires_grad=True)
    result = (tensor * 2).sin().sum()
    memory.limit_bytes = memory.allocated_bytes + 64
    result.backward()
    memory.limit_bytes = None
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1, device="simulated")
    assert torch.equal(tensor.grad.cpu(), 2 * torch.cos(torch.full((64, 64), 2.0)))


def test_a_backward_pass_of_offloaded_weights_raises(memory):
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 64)
    with offload(linear, "simulated"):
        result = linear(torch.ones(64, 64)).sin().sum()
        memory.limit_bytes = memory.allocated_bytes + 64
        with pytest.raises(torch.OutOfMemoryError):
            result.backward()
        memory.limit_bytes = None
        linear(torch.ones(2, 64)).sum().backward()


def test_copies_are_counted(memory):
    memory.reset()
    device = torch.zeros(10).to("simulated")
    device.copy_(torch.ones(10))
    host = device.cpu()
    host.copy_(device)
    (device * 2).sum()
    assert (memory.copies_in, memory.copied_in_bytes) == (2, 80)
    assert (memory.copies_out, memory.copied_out_bytes) == (2, 80)


def test_a_limit_needs_a_size():
    with pytest.raises(InvalidError, match="memory"):
        simulated_device(memory="much")
    assert simulated_device(memory="1.5KiB").memory.limit_bytes == 1536
    simulated_device()


def test_a_device_after_a_backward_pass_trains_offloaded_models():
    program = """
import torch, cotensor.tensorref
torch.ones(1, requires_grad=True).sum().backward()
cotensor.tensorref.simulated_device()
model = torch.nn.Linear(2, 2)
with cotensor.tensorref.offload(model, "simulated"):
    model(torch.ones(1, 2)).sum().backward()
print(model.weight.grad.tolist())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "[[1.0, 1.0], [1.0, 1.0]]\n", ran.stderr


def test_conjugates_are_views(memory):
    host = torch.tensor([1 + 2j, 3 - 1j])
    device = host.to("simulated")
    equal(device.conj() * 1j, host.conj() * 1j)
    device.conj().mul_(1j)
    equal(device, host.conj().mul(1j).conj())
    device.conj().imag.mul_(2)
    equal(device, torch.complex(host.conj().mul(1j).real, -2 * host.conj().mul(1j).imag))


def test_parts_of_one_operation_see_conjugates(memory):
    """PyTorch runs them inside of the dispatch of the operation."""
    host = torch.complex(torch.linspace(-1, 2, 9).sin(), torch.linspace(0, 3, 9).cos()).reshape(3, 3) + torch.eye(3)
    device = host.to("simulated")
    for function in (torch.linalg.pinv, lambda x: torch.linalg.matrix_sqrth(x @ x.mH)):
        equal(function(device), function(host))


def test_gradient_through_a_write_to_a_conjugate(memory):
    def gradient(x):
        x.requires_grad_()
        result = torch.fft.ifft(x)
        result.mul_(2)
        result.abs().sum().backward()
        return x.grad

    x = torch.arange(12.0).reshape(3, 4)
    equal(gradient(x.to("simulated")), gradient(x.clone()))


def test_sparse_tensors_count_as_their_values(memory):
    dense = torch.eye(4)
    allocated = memory.allocated_bytes
    device = dense.to_sparse().to("simulated")
    assert device.layout is torch.sparse_coo and device.device.type == "simulated"
    assert memory.allocated_bytes - allocated >= 4 * 4
    equal(device.to_dense(), dense)
    equal(torch.sparse.mm(device, torch.ones(4, 2).to("simulated")), torch.ones(4, 2))
    x = dense.to("simulated").requires_grad_()
    (x.to_sparse() * 2).to_dense().sum().backward()
    equal(x.grad, torch.full((4, 4), 2.0) * dense)
    with pytest.raises(NotImplementedError, match="simulated:0 have no layout torch.sparse_csr"):
        dense.to_sparse_csr().to("simulated")


def test_values_of_matrices_are_those_of_the_host(memory):
    torch.manual_seed(0)
    for size in range(2, 9):
        matrix = torch.randn(size, size)
        device, both = matrix.to("simulated"), matrix + matrix.t()
        for function in (torch.linalg.svdvals, torch.linalg.eigvals, torch.linalg.cond):
            equal(function(device), function(matrix))
        equal(torch.linalg.eigvalsh(both.to("simulated")), torch.linalg.eigvalsh(both))
        for hermitian in (False, True):
            out = torch.zeros((), dtype=torch.int64).to("simulated")
            torch.linalg.matrix_rank(both.to("simulated"), hermitian=hermitian, out=out)
            equal(out, torch.linalg.matrix_rank(both, hermitian=hermitian))
    device.requires_grad_()
    torch.linalg.svdvals(device).sum().backward()
    assert device.grad is not None


def test_matmul_writes_out(memory):
    one, other = torch.ones(5, 5, 2), torch.ones(2, 5)
    out = torch.zeros(5, 5, 5).to("simulated")
    torch.matmul(one[:, :, :0].to("simulated"), other[:0].to("simulated"), out=out)
    equal(out, torch.zeros(5, 5, 5))
    torch.matmul(one.to("simulated"), other.to("simulated"), out=out)
    equal(out, torch.full((5, 5, 5), 2.0))


def test_gradient_of_sgn_is_zero(memory):
    x = torch.ones(3).to("simulated").requires_grad_()
    (torch.sgn(x) * 2).sum().backward()
    equal(x.grad, torch.zeros(3))


def test_tensors_are_saved_loaded_and_copied(memory):
    def loaded(value, **options):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        return torch.load(file, **options)

    model = torch.nn.Linear(4, 3).to("simulated")
    values = {"parameter": model.weight, "tensor": torch.randn(2, 3).t().to("simulated")}
    for copied in (loaded(values), pickle.loads(pickle.dumps(values)), copy.deepcopy(values), copy.copy(values)):
        for name, value in values.items():
            equal(copied[name].detach(), value.detach().cpu())
            assert copied[name].stride() == value.stride() and copied[name].requires_grad == value.requires_grad
            assert isinstance(copied[name], torch.nn.Parameter) == isinstance(value, torch.nn.Parameter)
    assert loaded(model.state_dict(), map_location="cpu")["weight"].is_cpu
    alias = copy.copy(values["tensor"])
    alias.zero_()
    assert not values["tensor"].cpu().any()
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(model.weight * 2)


def test_sparse_gradients(memory):
    def train(model, x):
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        return model.weight

    def make():
        torch.manual_seed(0)
        return torch.nn.Embedding(6, 4, sparse=True)

    x = torch.tensor([0, 1, 1])
    expected = train(make(), x)
    model = make().to("simulated")
    assert torch.equal(train(model, x.to("simulated")).cpu(), expected)
    assert model.weight.grad.layout == torch.sparse_coo and model.weight.grad.device.type == "simulated"
    for strategy in ("genoa", "flow", "lru", "cpu"):
        for room in (1 << 20, 48):
            model = make()
            with offload(model, "simulated", strategy=strategy, memory=room):
                found = train(model, x.to("simulated"))
            assert torch.equal(found, expected) and model.weight.grad.is_cpu


def raise_error(*args):
    raise KeyError("stop")


@pytest.mark.parametrize("strategy", [None, "genoa", "flow", "lru", "cpu"])
@pytest.mark.parametrize("where", ["weight", "accumulated", "result", "module", "function"])
def test_exceptions_of_hooks_leave_the_backward_pass(where, strategy, memory):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    plain = contextlib.nullcontext(model) if strategy else contextlib.nullcontext(model.to("simulated"))
    with offload(model, "simulated", strategy=strategy) if strategy else plain:
        for _ in range(2):
            if where == "module":
                handle = model[1].register_full_backward_hook(raise_error)
            y = model(torch.ones(2, 4).to("simulated"))
            if where == "weight":
                handle = model[1].weight.register_hook(raise_error)
            elif where == "accumulated":
                handle = model[1].weight.register_post_accumulate_grad_hook(raise_error)
            elif where == "result":
                handle = y.register_hook(raise_error)
            elif where == "function":
                handle = y.grad_fn.register_prehook(raise_error)
            with pytest.raises(KeyError, match="stop"):
                y.sum().backward()
            handle.remove()
        # The next pass has no trace of the failure.
        model.zero_grad()
        model(torch.ones(2, 4).to("simulated")).sum().backward()
        assert model[1].bias.grad.tolist() == [2.0] * 4


def test_inference_mode_takes_operations_apart(memory):
    """As without it: functions that only read a shape take tensors of any device, and copies have memory of their own."""
    with torch.inference_mode():
        x = torch.ones(2, 3, device="simulated")
        assert torch.ones(3).expand_as(x).device.type == "cpu"
        copied_out = memory.copies_out
        y = x.to("cpu")
        assert memory.copies_out == copied_out + 1
        x.mul_(2)
        assert torch.equal(y, torch.ones(2, 3))


def test_foreach_functions_have_new_versions():
    x = torch.ones(3).to("simulated")
    before = x._version
    torch._foreach_add_([x], 1)
    assert x._version == before + 1
    weight = torch.ones(3).to("simulated").requires_grad_()
    y = (weight * weight).sum()
    weight.grad = torch.ones(3).to("simulated")
    torch.optim.SGD([weight], 0.1, foreach=True).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
