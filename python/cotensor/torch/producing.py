"""Pools of PyTorch whose tensors a store publishes without a copy: `Store.producing`."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any, List, Optional, Type

import torch

from .. import _native
from ..errors import UnsupportedError

#: The C functions of the extension.
ALLOCATE, FREE = "cotensor_device_alloc", "cotensor_device_free"
#: The allocator, once it is made. PyTorch calls it for as long as memory of a pool exists, also after the pool.
_allocator: Optional[Any] = None


def allocator() -> Any:
    """The extension's functions as an allocator of PyTorch."""
    global _allocator
    if _allocator is None:
        _allocator = torch.cuda.memory.CUDAPluggableAllocator(_native.__file__, ALLOCATE, FREE)
    return _allocator


class Producing:
    """A pool for the tensors that the blocks of this object allocate on one GPU."""

    def __init__(self, ordinal: int, device: str) -> None:
        if not torch.cuda.is_available():
            raise UnsupportedError(f"producing on {device} needs a PyTorch with CUDA (torch.cuda.is_available())")
        if not hasattr(torch.cuda, "MemPool") or not hasattr(torch.cuda, "use_mem_pool"):
            raise UnsupportedError(f"producing needs the memory pools of PyTorch 2.6 or later; this is {torch.__version__}")
        self.device = device
        self._ordinal = ordinal
        # A pool belongs to the current device.
        with torch.cuda.device(ordinal):
            self._pool = torch.cuda.MemPool(allocator().allocator())
        #: The blocks of each thread, which has a current device of its own.
        self._local = threading.local()

    def __enter__(self) -> Producing:
        with contextlib.ExitStack() as block:
            block.enter_context(torch.cuda.device(self._ordinal))
            block.enter_context(torch.cuda.use_mem_pool(self._pool))
            self._blocks().append(block.pop_all())
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._blocks().pop().__exit__(kind, value, trace)
        reason = _native.allocator_failure()
        if isinstance(value, torch.cuda.OutOfMemoryError) and reason is not None and hasattr(value, "add_note"):
            value.add_note(f"cotensor: {reason}")

    def _blocks(self) -> List[contextlib.ExitStack]:
        """The blocks of this thread, the innermost last."""
        found: List[contextlib.ExitStack] = self._local.__dict__.setdefault("blocks", [])
        return found

    def __repr__(self) -> str:
        return f"<Producing on {self.device}>"
