"""Modules and assertions for the tests of `cotensor.torch.share`."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Tuple

import pytest
import torch
from torch import nn

from cotensor.torch import Shared, share


class Calls(nn.Module):
    """A module whose forward is a function of `self` and the input."""

    def __init__(self, function: Callable[..., Any], **attributes: Any) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)
        nn.init.eye_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def shared(store: Any, function: Callable[..., Any], **attributes: Any) -> Tuple[nn.Module, Shared]:
    """A shared module in evaluation mode."""
    module = Calls(function, **attributes).eval()
    return module, share(module, store=store)


def computed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The output of the module's own code."""
    return type(module).forward(module, *args, **kwargs)


def assert_refused(module: nn.Module, sharing: Shared, reason: str, *args: Any, **kwargs: Any) -> None:
    """Asserts that the module's own code computes the call, and that `private` has the reason."""
    before = sum(sharing.private.values())
    module(*args, **kwargs)
    assert sharing.computed == sharing.hits == 0
    assert sum(sharing.private.values()) == before + 1
    assert any(reason in known for known in sharing.private), dict(sharing.private)


def no_gradients() -> Any:
    """A fixture for files in which all tests run without gradients."""

    @pytest.fixture(autouse=True)
    def without_gradients() -> Iterator[None]:
        with torch.no_grad():
            yield

    return without_gradients
