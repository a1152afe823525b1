"""Gradients through moves, and tensors that wait for the backward pass."""

from __future__ import annotations

from typing import Any, Tuple

import torch

from .mover import Mover
from .weights import Weight


class ToDevice(torch.autograd.Function):
    """A tensor of the host as its copy on the device; the gradient goes back to the host."""

    @staticmethod
    def forward(ctx: Any, host: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        ctx.device = host.device
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[torch.Tensor, None]:
        return gradient.to(ctx.device), None


class SavedWeight:
    """A part of a weight that the backward pass needs, instead of its copy on the device."""

    __slots__ = ("mover", "offset", "size", "state", "stride", "weight")

    def __init__(self, mover: Mover, weight: Weight, tensor: torch.Tensor, offset: int) -> None:
        self.mover, self.weight = mover, weight
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), offset
        self.state = weight.state()

    def changed(self) -> RuntimeError:
        """The error for a weight that was changed after the forward pass, as PyTorch's."""
        return RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{self.weight.name}, of shape {list(self.size)}"
        )


class SavedOnHost:
    """A tensor that waits on the host."""

    __slots__ = ("device", "tensor")

    def __init__(self, tensor: torch.Tensor, device: torch.device) -> None:
        self.tensor, self.device = tensor, device
