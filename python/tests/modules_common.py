"""A module with unusual parameters and buffers, and comparisons of modules."""

from __future__ import annotations

from typing import Any, Dict

import torch


class UnusualModule(torch.nn.Module):
    """A module with tied, strided, overlapping, empty and missing parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.tied = torch.nn.Linear(16, 16, bias=False)
        self.tied.weight = self.first.weight
        self.turned = torch.nn.Parameter(torch.randn(5, 7).t())
        self.sliced = torch.nn.Parameter(torch.randn(6, 10)[:, 2:5])
        self.frozen = torch.nn.Parameter(torch.randn(3), requires_grad=False)
        self.whole_numbers = torch.nn.Parameter(torch.arange(5), requires_grad=False)
        self.recurrent = torch.nn.LSTM(16, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.empty = torch.nn.Parameter(torch.zeros(0, 3))
        self.scalar = torch.nn.Parameter(torch.tensor(2.5, dtype=torch.bfloat16))
        self.register_buffer("positions", torch.arange(10).expand(1, -1), persistent=False)
        self.register_buffer("wide", torch.arange(3.0)[:, None].expand(3, 1000))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("short", torch.randn(4).half())
        memory = torch.arange(12, dtype=torch.float64)
        self.register_buffer("low", memory[:8])
        self.register_buffer("high", memory[4:].reshape(2, 4))
        self.register_buffer("nothing", None)

    def forward(self, x: Any) -> Any:
        out, _ = self.recurrent(self.tied(self.first(x)) + self.positions[0, 1] + self.sliced.sum() + self.turned.sum())
        return self.norm(out) * self.scalar


def state(module: Any) -> Dict[str, Any]:
    """Copies of all parameters and buffers of a module."""
    found = dict(module.named_parameters(remove_duplicate=False))
    found.update(module.named_buffers(remove_duplicate=False))
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def same(left: Dict[str, Any], right: Dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        assert torch.equal(left[name], right[name]), name


def on_meta(make: Any) -> Any:
    with torch.device("meta"):
        return make()
