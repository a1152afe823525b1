"""Results that show the memory of an argument."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.nn.parameter import is_lazy

from .arguments import like
from .simulated.tensor import raw_storage


def has_views(result: Any) -> bool:
    """Whether a result is a view, or a sequence with one; in inference mode, PyTorch does not mark views."""
    if isinstance(result, torch.Tensor):
        return result._is_view() or result.is_inference()
    return isinstance(result, (list, tuple)) and any([has_views(part) for part in result])


def restored(result: Any, is_copy: Callable[[int], bool], again: Callable[[], Any]) -> Any:
    """A result with views of the program's tensors instead of views of their copies. PyTorch then knows the views: a write to
    one is a write to the tensor, or an error. ``is_copy`` knows the numbers of the memory of copies; ``again`` runs the function
    on the program's tensors."""
    single = isinstance(result, torch.Tensor)
    parts = [result] if single else list(result)
    replaced = [isinstance(part, torch.Tensor) and has_views(part) and is_copy(raw_storage(part)) for part in parts]
    if not any(replaced):
        return result
    views = again()
    return views if single else like(result, [view if is_one else part for view, is_one, part in zip(views, replaced, parts)])


def is_new(result: Any) -> bool:
    """Whether a result on the host may have memory of its own."""
    return isinstance(result, torch.Tensor) and not is_lazy(result) and result.is_cpu and not result._is_view()
