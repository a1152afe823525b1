"""``torch.utils.swap_tensors`` inside of a session: a weight gets memory of the host."""

from __future__ import annotations

import weakref
from typing import Any, List

import torch

from . import threads
from .arguments import to_host


def swap_tensors(swap: Any, first: torch.Tensor, second: torch.Tensor) -> None:
    """PyTorch swaps no tensors with weak references: those of the sessions leave before, and come back swapped."""
    with torch._C.DisableTorchFunction():
        sessions = threads.entered()
        shown = [session.tensors.forget_places(first, second) for session in sessions]
        weight, other = (first, second) if first.is_cpu else (second, first)
        managing = _managing(weight, other)
        try:
            if managing:
                _swap_on_host(swap, weight, other)
            else:
                swap(first, second)
                first, second = second, first
        finally:
            for session, (was_first, was_second) in zip(sessions, shown):
                session.tensors.show(first, was_first)
                session.tensors.show(second, was_second)
        for session in managing:
            session.tensors.show(other, True)


def _managing(weight: torch.Tensor, other: torch.Tensor) -> List[threads.Session]:
    """The sessions that manage a weight, if it gets memory of the host instead of that of ``other``, which is on the device."""
    if not (isinstance(weight, torch.nn.Parameter) and weight.is_cpu) or other.is_cpu or not other.is_leaf:
        return []
    # Hooks stay with a tensor's memory. With weak references, PyTorch raises its error.
    if other._backward_hooks or other._post_accumulate_grad_hooks or weakref.getweakrefs(weight) or weakref.getweakrefs(other):
        return []
    return [session for session in threads.entered() if id(weight) in session.tensors.weights.owners]


def _swap_on_host(swap: Any, weight: Any, other: torch.Tensor) -> None:
    """A weight gets memory of the host, also from a tensor of the device: optimizers have their state there."""
    kind = type(other)
    if not issubclass(kind, torch.nn.Parameter):
        kind = torch.nn.Parameter if isinstance(other, torch.nn.Parameter) else torch.Tensor
    moved = torch.Tensor._make_subclass(kind, to_host(other.detach()), other.requires_grad)
    moved.grad = to_host(other.grad)
    # Not those of the class, such as the elements of a simulated tensor.
    own = {"_is_param", *vars(other.detach())}
    vars(moved).update({name: value for name, value in vars(other).items() if name not in own})
    swap(other, moved)
    try:
        swap(weight, other)
    except BaseException:
        swap(other, moved)
        raise
