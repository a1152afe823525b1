"""Weights that are swapped with tensors of the device, as ``torch.utils.swap_tensors`` does."""

from __future__ import annotations

import copy
import weakref

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import X, mlp  # noqa: E402

from cotensor.tensorref import offload  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")


def values(factor=1.0, **options):
    return torch.full((16, 16), factor, device="simulated", **options)


def test_tensors_are_swapped_with_their_places(strategy):
    with offload(mlp(1), "simulated", strategy=strategy):
        first, second = torch.ones(2).to("simulated"), torch.zeros(3)
        torch.utils.swap_tensors(first, second)
        assert (first.device.type, second.device.type) == ("cpu", "simulated")
        assert first.tolist() == [0, 0, 0] and (second + 1).tolist() == [2, 2]
        held = weakref.ref(second)
        with pytest.raises(RuntimeError, match="weakref"):
            torch.utils.swap_tensors(first, second)
        assert (first.device.type, second.device.type) == ("cpu", "simulated") and held() is second
        del held
        ended = offload(mlp(2), "simulated", strategy=strategy)
        with ended:
            third = torch.ones(2).to("simulated")
        torch.utils.swap_tensors(first, third)


@pytest.mark.parametrize("order", [1, -1])
def test_weight_that_is_swapped_keeps_memory_of_the_host(strategy, order):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy):
        weight, values = model[0].weight, torch.ones(model[0].weight.shape, device="simulated")
        other = torch.nn.Parameter(values * 0.5)
        other.label, other.grad, before = "other", values * 2, weight.detach().clone()
        optimizer = torch.optim.Adam([weight], fused=True)
        held = weakref.ref(other)
        with pytest.raises(RuntimeError, match="weakref"):
            torch.utils.swap_tensors(*[weight, other][::order])
        assert torch.equal(weight, before) and held() is other
        del held
        model(torch.ones(1, weight.shape[1], device="simulated"))
        torch.utils.swap_tensors(*[weight, other][::order])
        assert (weight.device.type, other.device.type) == ("simulated", "simulated")
        assert weight.label == "other" and not hasattr(other, "label") and other.grad is None
        assert set(vars(weight)) == {"label"} and copy.deepcopy(model)[0].weight.shape == weight.shape
        torch.testing.assert_close(other.detach(), before)
        torch.testing.assert_close(weight.grad, values * 2, check_device=False)
        optimizer.step()
        model(torch.ones(1, weight.shape[1], device="simulated")).sum().backward()
        optimizer.step()
        assert (weight != 0.5).all()
    assert weight.is_cpu


def test_gradients_pass_a_result_that_became_a_weight():
    def gradient(model, base):
        result = base * 2
        torch.utils.swap_tensors(model[0].weight, result)
        model(X.to("simulated")).sum().backward()
        return base.grad

    expected = gradient(mlp(1).to("simulated"), values(requires_grad=True))
    model = mlp(1)
    with offload(model, "simulated"):
        found = gradient(model, values(requires_grad=True))
    assert torch.equal(found.cpu(), expected.cpu())


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_a_tensor_that_became_a_weight_are_called(register):
    model, called = mlp(1), []
    with offload(model, "simulated"):
        other = torch.nn.Parameter(values())
        getattr(other, register)(lambda tensor: called.append(tensor.device.type))
        torch.utils.swap_tensors(model[0].weight, other)
        model(X.to("simulated")).sum().backward()
    assert called == ["simulated"]


@pytest.mark.parametrize("held", [0, 1])
def test_a_swap_that_fails_leaves_graphs_as_they_are(held):
    model = mlp(1)
    with offload(model, "simulated"):
        y, other = model(X.to("simulated")), torch.nn.Parameter(values())
        z = (other * 2).sum()
        reference = weakref.ref([model[0].weight, other][held])
        with pytest.raises(RuntimeError, match="weakref"):
            torch.utils.swap_tensors(model[0].weight, other)
        (y.sum() + z).backward()
        assert other.device.type == "simulated" and reference() is [model[0].weight, other][held]
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("strategy", ["flow", "genoa"])
def test_the_other_tensor_stays_on_the_device(strategy):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy), offload(mlp(1), "simulated", strategy=strategy) as last:
        weight, other = model[0].weight, torch.nn.Parameter(values())
        model(X.to("simulated"))
        torch.utils.swap_tensors(weight, other)
        assert other not in last.tensors.marks
        for _ in range(2):
            assert {weight.device.type, other.device.type, other.view(-1).device.type} == {"simulated"}
            model(X.to("simulated"))
    assert weight.is_cpu


@pytest.mark.parametrize("strategy", ["flow", "genoa"])
@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_a_state_that_is_swapped_in_keeps_its_memory(device, strategy):
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy), torch.no_grad():
        given = {name: (tensor * 2).to(device) for name, tensor in mlp(1, seed=1).state_dict().items()}
        model(X)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model.load_state_dict(given, assign=True)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        assert model[0].weight.device.type == "simulated" and torch.equal(model[0].weight.cpu(), given["0.weight"].cpu())
        model[0].weight.zero_()
        # What is on the device can not be memory of the host.
        assert not given["0.weight"].any() or (device, strategy) == ("simulated", "flow")
    assert model[0].weight.is_cpu
