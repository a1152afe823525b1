"""Tensors of the host that a program sees on the device: the results of operations that the host keeps."""

from __future__ import annotations

import weakref
from typing import Any, Dict, KeysView

import torch

from .arguments import mapped
from .weights import Known


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
        Known.change()

    def clear(self) -> None:
        """Forgets all tensors."""
        self._marked.clear()
        Known.change()

    def _mark(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cpu:
            key, marked = id(tensor), self._marked

            def end(dead: "weakref.ref[torch.Tensor]") -> None:
                if marked.get(key) is dead:
                    del marked[key]
                    Known.change()

            marked[key] = weakref.ref(tensor, end)
            Known.change()
        return tensor
