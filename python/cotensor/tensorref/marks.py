"""Tensors of the host that a program sees on the device: the results of operations that the host keeps."""

from __future__ import annotations

import weakref
from typing import Any, Dict

import torch

from .arguments import mapped
from .known import TENSORS, Holder


class Marks(Holder):
    """Knows these tensors as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self._marked: Dict[int, "weakref.ref[torch.Tensor]"] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        found = self._marked.get(id(tensor))
        return found is not None and found() is tensor

    def add(self, values: Any) -> Any:
        """Marks the tensors of the host among ``values``, and returns these."""
        return mapped(self._mark, values)

    def discard(self, tensor: torch.Tensor) -> None:
        """A tensor is one of the host only."""
        self._marked.pop(id(tensor), None)
        TENSORS.discard(id(tensor), self.key)

    def clear(self) -> None:
        """Forgets all tensors."""
        TENSORS.discard_all(self.key)
        self._marked.clear()

    def _mark(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cpu:
            number, marked, key = id(tensor), self._marked, self.key

            def end(dead: "weakref.ref[torch.Tensor]") -> None:
                if marked.get(number) is dead:
                    del marked[number]
                    TENSORS.discard(number, key)

            marked[number] = weakref.ref(tensor, end)
            TENSORS.add(number, key)
        return tensor
