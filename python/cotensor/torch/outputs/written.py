"""Writes to the weights of a shared module, which its graphs and its results do not follow."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any, List, Optional, Sequence

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..._forks import renewed


class Watch:
    """The weights of a module since a snapshot."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._weights = list(weights)
        self._ids = set(map(id, weights))
        self._versions = self._read()
        #: Whether an optimizer that has one of the weights made a step.
        self._is_stepped = False
        with _lock:
            _watch_optimizers()
            _watches.add(self)

    def is_written(self) -> bool:
        """Whether an optimizer or an operator of torch wrote a weight. Writes by ``.data`` or numpy are not seen."""
        return self._is_stepped or self._read() != self._versions

    def _read(self) -> List[Optional[int]]:
        return [None if weight.is_inference() else weight._version for weight in self._weights]

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Fused steps do not change the version of a parameter."""
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        self._is_stepped |= any(id(weight) in self._ids and weight.grad is not None for weight in weights)


_lock = renewed(sys.modules[__name__], "_lock", threading.Lock)
_watches: "weakref.WeakSet[Watch]" = weakref.WeakSet()
_hook: Any = None


def _watch_optimizers() -> None:
    """Starts with the first watch, so that programs without one have no hook."""
    global _hook
    if _hook is None:
        _hook = register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    with _lock:
        watches = list(_watches)
    for watch in watches:
        watch.after_step(optimizer)
