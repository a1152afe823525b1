"""What a captured graph does not follow is said once: writes to the weights, and calls with gradients."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

from conftest import local_store  # noqa: E402

import cotensor.torch as ct  # noqa: E402

store = local_store()


def model() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()


def step(module: torch.nn.Module, **options: Any) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), **options)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


WRITES: "dict[str, Callable[[Any], Any]]" = {
    "load_state_dict": lambda module: module.load_state_dict(copy.deepcopy(model().state_dict())),
    "step": step,
    "fused step": lambda module: step(module, fused=True),
    "foreach step": lambda module: step(module, foreach=True),
    "in place": lambda module: module[0].bias.detach().zero_(),
}


@pytest.mark.parametrize("write", sorted(WRITES))
@pytest.mark.parametrize("key", [None, "stated"])
def test_write_to_a_weight_is_said_once(store: Any, write: str, key: Any) -> None:
    module = model()
    shared = ct.share(module, store=store, key=key)
    x = torch.ones(1, 4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        first = module(x)
    WRITES[write](module)
    with torch.no_grad():
        with pytest.warns(UserWarning, match=r"Sequential: its weights were written.*call refresh\(\)") as warned:
            assert torch.equal(module(x), first), "shared calls use the earlier weights"
        assert warned[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module(x)
            shared.refresh()
            module(x)
    step(module)
    with torch.no_grad(), pytest.warns(UserWarning, match="were written"):
        module(x)


def test_step_of_another_module_is_not_reported(store: Any) -> None:
    module, other = model(), model()
    ct.share(module, store=store)
    step(other, fused=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        module(torch.ones(1, 4))


def test_calls_with_gradients_are_said_once(store: Any) -> None:
    module = model()
    shared = ct.share(module, store=store)
    x = torch.ones(1, 4)
    with pytest.warns(UserWarning, match="gradients enabled are not shared") as warned:
        module(x)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(x)
    assert sum(shared.private.values()) == 2
    # A module that is also shared has said it by its counts.
    used = model()
    ct.share(used, store=store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            used(x)
        used(x)


class Seed(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * (torch.initial_seed() % 7)


class FastPath(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * (2 if torch.backends.mha.get_fastpath_enabled() else 3)


class Stride(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * float(x.stride(0))


def test_seed_and_switches_are_no_constants(store: Any) -> None:
    x = torch.ones(3)
    for kind, change in ((Seed, torch.manual_seed), (FastPath, torch.backends.mha.set_fastpath_enabled)):
        module = kind().eval()
        ct.share(module, store=store)
        try:
            for value in (1, 0, 1):
                change(value)
                assert torch.equal(module(x), kind()(x)), (kind, value)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


def test_stride_of_a_dimension_of_size_1_is_seen(store: Any) -> None:
    module = Stride().eval()
    ct.share(module, store=store)
    for stride in (4, 77, 4, 5):
        for x in (torch.ones(4).as_strided((1, 4), (stride, 1)), torch.ones(9)[5:].as_strided((1, 4), (stride, 1), 5)):
            assert float(module(x)[0, 0]) == stride
