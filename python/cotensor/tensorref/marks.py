"""Tensors of the host that a program sees on the device: the results of operations that the host keeps."""

from __future__ import annotations

import weakref
from typing import Any, Dict, KeysView

import torch

from .arguments import mapped


class Marks:
    """Knows these tensors as long as they live."""

    def __init__(self) -> None:
        self._marked: Dict[int, "weakref.ref[torch.Tensor]"] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        found = self._marked.get(id(tensor))
        return found is not None and found() is tensor

    def add(self, values: Any) -> Any:
        """Marks the tensors of the host among ``values``, and returns these."""
        return mapped(self._mark, values)

    def ids(self) -> KeysView[int]:
        """The ids of the tensors."""
        return self._marked.keys()

    def discard(self, tensor: torch.Tensor) -> None:
        """A tensor is one of the host only."""
        self._marked.pop(id(tensor), None)

    def clear(self) -> None:
        """Forgets all tensors."""
        self._marked.clear()

    def _mark(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cpu:
            key, marked = id(tensor), self._marked
            marked[key] = weakref.ref(tensor, lambda dead: marked.pop(key, None) if marked.get(key) is dead else None)
        return tensor
