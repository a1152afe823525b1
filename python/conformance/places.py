"""Where a program runs: on the host, on the simulated device, or offloaded to that: a module, or all tensors as references."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Iterator, List

import torch
from torch.utils._pytree import tree_map

import cotensor.tensorref
from cotensor.tensorref.refs import eject, inject, tensorsManager
from cotensor.tensorref.refs.tensor_ref import as_ref
from cotensor.tensorref.simulated.memory import MEMORIES

_MEMORIES = ("ample", "half", "least")


@dataclass(frozen=True)
class Place:
    """``name`` is "host", "plain" (``model.to("simulated")``), or a strategy.

    ``memory`` is that of the strategy: "ample", "half", "least" (one byte), or a share of the weights such as "25%".
    Of "references", it is the strategy."""

    name: str
    memory: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.memory}".strip()

    @property
    def is_offloaded(self) -> bool:
        """Whether weights stay on the host."""
        return bool(self.memory)

    @property
    def has_references(self) -> bool:
        """Whether all tensors are references, which show where they are."""
        return self.name == "references"

    @property
    def shows_device(self) -> bool:
        """Whether tensors of the program are on the device, or show it."""
        return self.name not in ("host", "references")

    @contextlib.contextmanager
    def block(self, module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """A block in which a program uses ``module``; all other tensors go through :meth:`move`."""
        # A failure of an earlier backward pass must not be raised here.
        for simulated in MEMORIES:
            simulated.forget_failure()
        if self.has_references:
            for tensor in [*module.parameters(), *module.buffers()]:
                as_ref(tensor)
            tensorsManager.device, tensorsManager.strategy = "simulated", self.memory
            inject()
            try:
                yield module
            finally:
                eject()
                tensorsManager.device = None
            return
        if not self.is_offloaded:
            yield module if self.name == "host" else module.to("simulated")
            return
        with cotensor.tensorref.offload(module, "simulated", strategy=self.name, memory=self._bytes(module)):
            yield module

    def move(self, values: Any) -> Any:
        """A copy of each tensor where a program would put its inputs."""
        return tree_map(self._moved, values)

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        # A copy that no session makes: it is where the original is.
        with torch._C.DisableTorchFunction():
            copy = value.detach().clone()
        if self.shows_device:
            copy = copy.to("simulated")
        copy = copy.requires_grad_(value.requires_grad)
        return as_ref(copy) if self.has_references else copy

    def _bytes(self, module: torch.nn.Module) -> int:
        if self.memory == "ample":
            return 1 << 30
        if self.memory == "least":
            return 1
        share = 0.5 if self.memory == "half" else int(self.memory.rstrip("%")) / 100
        tensors = [*module.parameters(), *module.buffers()]
        weights_bytes = sum([tensor.nbytes for tensor in tensors if not torch.nn.parameter.is_lazy(tensor)])
        return max(int(weights_bytes * share), 1)


HOST = Place("host")
PLAIN = Place("plain")


def places(strategies: List[str]) -> List[Place]:
    """The places that are compared with the host."""
    # All operations with weights run on the host with the strategy "cpu".
    memories = {"cpu": ("ample",), "references": ("genoa", "flow")}
    return [PLAIN, *[Place(name, memory) for name in strategies for memory in memories.get(name, _MEMORIES)]]
