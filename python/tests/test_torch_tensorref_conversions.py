"""Modules that move or convert their tensors, with PyTorch's flags that replace parameters."""

from __future__ import annotations

import contextlib
import weakref

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import STRATEGIES, X, check, mlp  # noqa: E402

from cotensor.tensorref import offload  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")


def is_on_host(model):
    return all(tensor.is_cpu for tensor in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("flag", ["overwrite", "swap"])
def test_flags_of_pytorch_change_nothing_of_what_comes_home(flag):
    set_flag = getattr(torch.__future__, f"set_{flag}_module_params_on_conversion")
    model = mlp(1)
    weight, session = model[0].weight, offload(model, "simulated", strategy="lru")
    held = weakref.ref(weight)
    set_flag(True)
    try:
        with session:
            y = model(X.to("simulated"))
            model.register_buffer("mean", y.detach().mean(0))
            model.extra = torch.nn.Parameter(y.detach())
            model.extra.grad = y.detach()
            model[0].extra = model.extra
    finally:
        set_flag(False)
    y.sum().backward()
    assert is_on_host(model) and held() is model[0].weight and weight.grad is not None
    assert model.extra is model[0].extra and torch.equal(model.extra.grad, model.extra)


def test_a_model_that_does_not_come_home_ends_its_session(monkeypatch):
    model = mlp(1)
    with offload(model, "simulated", strategy="lru") as session:
        model.register_buffer("mean", model(X.to("simulated")).detach().mean(0))
        assert session.stats()["used_bytes"]
        monkeypatch.setattr("cotensor.tensorref.session._bring_home", lambda model: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.__exit__(None, None, None)
        assert not session.stats()["used_bytes"]
        monkeypatch.undo()
        session.__enter__()


@pytest.mark.parametrize("strategy", ["flow", "genoa"])
@pytest.mark.parametrize("module", ["model", "part", "around"])
def test_parameters_that_pytorch_replaces_are_on_the_host(module, strategy):
    model = mlp(2)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with offload(model, "simulated", strategy=strategy):
            model(X)
            moved = {"model": model, "part": model[0], "around": torch.nn.Sequential(model)}[module]
            moved.double()
            assert all([tensor.device.type == "simulated" for tensor in moved.parameters()])
            with torch._C.DisableTorchFunction():
                assert is_on_host(model)
            assert model[0](X.double()).device.type == "simulated"
            model[0].weight = torch.nn.Parameter(torch.ones(16, 16))
            model[0].to("simulated")
            with torch._C.DisableTorchFunction():
                assert is_on_host(model)
            assert model[0].weight.device.type == "simulated"
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def test_models_move_to_and_from_the_device_meta():
    model = mlp(1).to("meta")
    with offload(model, "simulated"):
        model.to_empty(device="simulated")
        with torch._C.DisableTorchFunction():
            assert is_on_host(model)
        assert model[0].weight.device.type == model(X).device.type == "simulated"
        model.to("meta")
        assert model[0].weight.is_meta
    assert model[0].weight.is_meta


HOMES = {"cpu": lambda module: module.cpu(), "to": lambda module: module.to("cpu")}


@STRATEGIES
@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize("home", HOMES)
def test_a_model_that_moves_to_the_host_shows_it(home, sessions, strategy):
    def program(model, x):
        y = model(x)
        HOMES[home](model)
        shown = {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]}
        y.sum().backward()
        # An operation that reads a parameter manages it again.
        z = model(x)
        return shown, model[0][0].weight.device.type, [one.detach().cpu() for one in (y, z, model[0][0].weight.grad)]

    model, plain = [torch.nn.Sequential(mlp(1), torch.nn.BatchNorm1d(16)).eval() for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for _ in range(sessions):
            stack.enter_context(offload(model, "simulated", strategy=strategy))
        shown, device, found = program(model, X.to("simulated"))
    assert (shown, device) == ({"cpu"}, "simulated")
    for one, other in zip(found, program(plain, X)[2]):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@STRATEGIES
def test_a_part_that_moves_to_the_host_shows_it(strategy):
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy):
        model(X)
        model[0].cpu()
        model[1].double().to("simulated").float()
        assert [part.weight.device.type for part in model] == ["cpu", "simulated"]
        torch.nn.ModuleList([model]).cpu()
        assert [part.weight.device.type for part in model] == ["cpu", "cpu"]
        y = model(X)
    check(model, y)
