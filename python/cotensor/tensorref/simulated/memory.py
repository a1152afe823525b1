"""The memory of the simulated accelerator."""

from __future__ import annotations

import threading
import weakref
from typing import List, Optional

import torch


class Buffer:
    """One allocation: the storage of host memory that stands for it. Its last tensor frees it.

    ``is_lent``: a store has the memory, whose budget counts it instead."""

    __slots__ = ("__weakref__", "is_lent", "memory", "size_bytes", "storage")

    def __init__(self, memory: "SimulatedMemory", storage: torch.UntypedStorage, is_lent: bool = False) -> None:
        self.memory = memory
        self.storage = storage
        self.is_lent = is_lent
        self.size_bytes = 0
        if not is_lent:
            memory.take(storage.nbytes())
            self.size_bytes = storage.nbytes()

    def __del__(self) -> None:
        self.memory.give_back(self.size_bytes)


class SimulatedMemory:
    """A limit on the bytes of all tensors of the device, and counters of its copies."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._buffers: "weakref.WeakValueDictionary[int, Buffer]" = weakref.WeakValueDictionary()
        #: Bytes that tensors may use; None: no limit.
        self.limit_bytes: Optional[int] = None
        #: Bytes of all tensors.
        self.allocated_bytes = 0
        #: The most bytes since the last :meth:`reset`.
        self.peak_bytes = 0
        #: Copies from the host, and their bytes.
        self.copies_in = self.copied_in_bytes = 0
        #: Copies to the host, and their bytes.
        self.copies_out = self.copied_out_bytes = 0
        self._failing = self._sparing = 0
        self._failure: Optional[torch.OutOfMemoryError] = None

    def reset(self) -> None:
        """Sets all counters to zero and the peak to the bytes in use."""
        with self._lock:
            self.peak_bytes = self.allocated_bytes
            self.copies_in = self.copied_in_bytes = self.copies_out = self.copied_out_bytes = 0

    def fail(self, allocations: int = 1, after: int = 0) -> None:
        """The next ``allocations`` find no memory, or those that follow the next ``after`` ones."""
        self._failing, self._sparing = allocations, after

    @property
    def failing(self) -> int:
        """How many allocations will still fail."""
        return self._failing

    def buffer_of(self, tensor: torch.Tensor) -> Buffer:
        """The allocation of a host tensor that stands for one of the device."""
        storage = tensor.untyped_storage()
        with self._lock:
            found = self._buffers.get(storage._cdata)
            if found is None:
                found = Buffer(self, storage)
                # The buffer keeps the storage, so that no other one gets this number.
                self._buffers[storage._cdata] = found
            grown = 0 if found.is_lent else storage.nbytes() - found.size_bytes
            if grown > 0:
                # Resized, as by an operation with an empty ``out``.
                self.take(grown)
                found.size_bytes += grown
            return found

    def lent(self, tensor: torch.Tensor) -> Buffer:
        """The allocation of a host tensor that stands for memory of a store on the device."""
        storage = tensor.untyped_storage()
        with self._lock:
            buffer = self._buffers[storage._cdata] = Buffer(self, storage, is_lent=True)
        return buffer

    def take(self, size_bytes: int) -> None:
        """Takes memory. Raises ``torch.OutOfMemoryError`` beyond the limit.

        In a backward pass, an exception of a backend in Python would end the process. The pass gets memory beyond the limit then,
        and the next allocation after it raises, or :meth:`check`.
        """
        in_backward = torch._C._current_graph_task_id() != -1
        if not in_backward:
            self.check()
        with self._lock:
            spared = self._sparing > 0 and size_bytes > 0
            self._sparing -= spared
            failing = self._failing > 0 and size_bytes > 0 and not spared
            self._failing -= failing
            beyond = self.limit_bytes is not None and self.allocated_bytes + size_bytes > self.limit_bytes
            if failing or (beyond and size_bytes > 0):
                error = torch.OutOfMemoryError(
                    f"simulated out of memory. Tried to allocate {size_bytes} bytes. "
                    f"{self.allocated_bytes} of {self.limit_bytes} bytes are in use."
                )
                if not in_backward:
                    try:
                        raise error
                    finally:
                        # A cycle of the error and this frame would keep the tensors of all callers.
                        del error
                self._failure = self._failure or error
            self.allocated_bytes += size_bytes
            self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)

    def check(self) -> None:
        """Raises the ``torch.OutOfMemoryError`` of a backward pass."""
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure

    def forget_failure(self) -> None:
        """Drops the failure of a backward pass that raised another error."""
        self._failure = None

    def give_back(self, size_bytes: int) -> None:
        """Frees memory."""
        with self._lock:
            self.allocated_bytes -= size_bytes

    def copied(self, size_bytes: int, to_device: bool) -> None:
        """Counts a copy between host and device."""
        with self._lock:
            if to_device:
                self.copies_in += 1
                self.copied_in_bytes += size_bytes
            else:
                self.copies_out += 1
                self.copied_out_bytes += size_bytes


#: The memory of each simulated device.
MEMORIES: List[SimulatedMemory] = [SimulatedMemory()]


def check() -> None:
    """Raises the ``torch.OutOfMemoryError`` of a backward pass."""
    for memory in MEMORIES:
        memory.check()


def forget_failures() -> None:
    """Drops the failures of a backward pass that raised another error."""
    for memory in MEMORIES:
        memory.forget_failure()
