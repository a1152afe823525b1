"""Copies of published weights on a device that programs share: tensors of the store in the memory of the device."""

from __future__ import annotations

import time
import warnings
from typing import Any, Dict, Optional, Protocol, Sequence, Tuple

import torch

from .._native import ResidentCopies, published_at
from ..errors import CotensorError, OverBudgetError, TimedOutError, UnsupportedError
from .simulated.device import simulated_name
from .simulated.memory import MEMORIES
from .simulated.tensor import SimulatedTensor

#: How long an operation waits for a program that is making the same copy.
_WAIT_SECONDS = 1.0
#: How often the store is asked for memory that it did not have.
_RETRY_SECONDS = 1.0
#: How long a program makes copies of its own after the store failed otherwise.
_PAUSE_SECONDS = 10.0
#: Smaller weights are not shared. A tensor of the store takes 2 MiB of a CUDA device at least.
_SMALLEST_BYTES = {"cuda": 1 << 20}


class Memory(Protocol):
    """The memory of the device, as :class:`~cotensor.tensorref.memory.DeviceMemory` counts it."""

    pool_bytes: int
    shared_bytes: int
    store_used_bytes: int

    def keep_for_store(self, limit_bytes: int, used_bytes: int) -> None:
        """The store may have ``limit_bytes`` of the device, of which the device does not count ``used_bytes`` as free."""


class SharedCopies:
    """The shared copies of one program on one device."""

    def __init__(self, copies: ResidentCopies, device: torch.device, memory: Memory, published_bytes: int) -> None:
        self._copies = copies
        self._device = device
        self._memory = memory
        self._published_bytes = published_bytes
        self._full_until = self._paused_until = self._read_at = float("-inf")
        #: Addresses of weights of which another program is making the copy, and the times until which this one makes its own.
        self._others: Dict[int, float] = {}
        self._has_warned = False

    def lease(self, source: torch.Tensor) -> Optional[Tuple[torch.Tensor, int]]:
        """The shared copy of a flat tensor of the host, and the bytes copied for it. None: the program makes its own."""
        now = time.monotonic()
        address = source.data_ptr()
        if max(self._paused_until, self._others.get(address, now)) > now:
            return None
        if source.nbytes < _SMALLEST_BYTES.get(self._device.type, 1):
            return None
        try:
            found = self._copies.lease(address, source.nbytes, _WAIT_SECONDS, now >= self._full_until)
        except OverBudgetError:
            self._full_until = now + _RETRY_SECONDS
            return None
        except TimedOutError:
            self._others[address] = time.monotonic() + _PAUSE_SECONDS
            return None
        except CotensorError as failure:
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(f"copies on {self._device} are not shared for now: {failure}", RuntimeWarning, stacklevel=2)
            return None
        if found is None:
            return None
        shown, copied_bytes = found
        if self._device.type != "simulated":
            return shown.view(source.dtype), copied_bytes
        index = self._device.index or 0
        # The tensor keeps it.
        buffer = MEMORIES[index].lent(shown)
        if copied_bytes:
            buffer.memory.copied(copied_bytes, True)
        return SimulatedTensor(shown.view(source.dtype), index), copied_bytes

    def freed(self) -> None:
        """A lease of this program has ended: the store may have room for another copy."""
        self._full_until = float("-inf")

    def refresh(self) -> bool:
        """Reads from time to time how much memory the store has left. Returns whether it has more than before."""
        memory, now, is_simulated = self._memory, time.monotonic(), self._device.type == "simulated"
        # The free memory of a real device depends on what the store uses of it.
        if (is_simulated and memory.pool_bytes >= self._published_bytes) or now - self._read_at < _RETRY_SECONDS:
            return False
        self._read_at = now
        try:
            found = self._copies.budget()
        except CotensorError:
            # Such as in a forked process: a lease says why.
            return False
        if found is None:
            return False
        if not is_simulated:
            memory.store_used_bytes = found[0]
        room = min(memory.shared_bytes + max(found[1] - found[0], 0), self._published_bytes)
        if room <= memory.pool_bytes:
            return False
        memory.pool_bytes = room
        return True


def identity(device: torch.device) -> Optional[str]:
    """The name of a device; None if it has none."""
    if device.type == "simulated":
        name = simulated_name(device)
        return None if name is None else f"simulated:{name}"
    module: Any = torch.get_device_module(device)
    properties = module.get_device_properties(device) if hasattr(module, "get_device_properties") else None
    uuid = getattr(properties, "uuid", None)
    return None if uuid is None else f"{device.type}:{uuid}"


def join(device: torch.device, sources: Sequence[torch.Tensor], memory: Memory, wanted: Optional[bool]) -> Optional[SharedCopies]:
    """Shares copies of the published ones of ``sources``, flat tensors of the host; None: not here.

    ``wanted``: by default on simulated devices, else as said, with :class:`UnsupportedError` where copies cannot be shared.
    """
    if not (device.type == "simulated" if wanted is None else wanted):
        return None
    name = identity(device)
    if name is None:
        return _refuse(wanted, f"{device} has no identity that other programs see")
    smallest = _SMALLEST_BYTES.get(device.type, 1)
    found = [(source, published_at(source.data_ptr(), source.nbytes)) for source in sources if source.nbytes >= smallest]
    published = [(source, part[0]) for source, part in found if part is not None]
    if not published:
        return _refuse(wanted, "no weight of the model is published: use cotensor.torch.attach or publish")
    try:
        copies = ResidentCopies(published[0][1], device.type, device.index or 0, name)
    except CotensorError as failure:
        return _refuse(wanted, str(failure))
    budget = copies.budget()
    if budget is None:
        place = copies.device
        return _refuse(wanted, f"the store has no memory on {place}: cotensor serve --max-device-memory {place}=SIZE")
    used_bytes, limit_bytes = budget
    published_bytes = sum([source.nbytes for source, _ in published])
    # The memory of a simulated device does not know what other programs have.
    memory.keep_for_store(limit_bytes, 0 if device.type == "simulated" else used_bytes)
    memory.pool_bytes = min(limit_bytes, published_bytes)
    return SharedCopies(copies, device, memory, published_bytes)


def _refuse(wanted: Optional[bool], why: str) -> Optional[SharedCopies]:
    if wanted:
        raise UnsupportedError(f"shared_copies: {why}", field="shared_copies")
    return None
