"""How much of a device's memory the weights of a program may use."""

from __future__ import annotations

import time
import weakref
from typing import Any, Optional, Protocol, Tuple

import torch

from .weights import Weights

#: The share of the memory that is kept for activations before they are measured, and of free memory that is left to others.
_RESERVED = 8
#: Budgets are multiples of the memory divided by this, so that plans do not change with every measurement.
_STEPS = 32
#: Managed operations of one window of measurements.
_WINDOW = 256
#: Free memory is read at most this often.
_INTERVAL_SECONDS = 0.05
#: What programs need is rounded up to multiples of the device's memory divided by this.
_NEED_STEPS = 256


class Used(Protocol):
    """What knows the bytes of weights on a device."""

    @property
    def used(self) -> int:
        """Bytes."""


class DeviceMemory:
    """The memory of a device, shared by the weights and the activations of this program."""

    def __init__(self, device: torch.device, memory: Optional[int]) -> None:
        self.module: Any = torch.get_device_module(device)
        self.device = device
        #: Bytes that the program may use; None: what is free.
        self.memory = memory
        self._peaks = [0, 0]
        self._operations = 0
        #: When the device is read again.
        self._next_at = float("-inf")
        #: Bytes that other programs leave to this one, if a daemon divides the device.
        self.share: Optional[int] = None
        #: Bytes of this session's weights on the device, when they were last counted; without shared copies.
        self.weights_bytes = 0
        #: Bytes of the device that are a store's, and those of them that the device does not count as free.
        self.store_bytes = self.store_used_bytes = 0
        #: Bytes of the store's memory that shared copies of this program may have, and those that they have.
        self.pool_bytes = self.shared_bytes = 0
        self._own = memory if memory is not None else self.free()
        _all.add(self)

    @property
    def _total(self) -> int:
        return self._own if self.share is None else max(min(self._own, self.share), 1)

    def free(self) -> int:
        """Free bytes of the device, other programs included, without those that a store may still take."""
        return max(int(self.module.mem_get_info(self.device)[0]) - self.store_bytes + self.store_used_bytes, 0)

    def capacity(self) -> int:
        """Bytes of the device, without those of a store."""
        return max(int(self.module.mem_get_info(self.device)[1]) - self.store_bytes, 1)

    def keep_for_store(self, limit_bytes: int, used_bytes: int) -> None:
        """A store may have ``limit_bytes`` of the device; the device does not count ``used_bytes`` of them as free."""
        kept_bytes = self.store_bytes - self.store_used_bytes
        self.store_bytes, self.store_used_bytes = limit_bytes, used_bytes
        if self.memory is None:
            self._own = max(self._own + kept_bytes - (limit_bytes - used_bytes), 1)

    def allocated(self) -> int:
        """Bytes of this program's tensors, without the weights of its other sessions."""
        return int(self.module.memory_allocated(self.device)) - self._others()

    def reserved(self) -> int:
        """Bytes that other programs cannot use, after PyTorch has freed what it only keeps for later."""
        if not hasattr(self.module, "memory_reserved"):
            return self.allocated()
        self.module.empty_cache()
        return int(self.module.memory_reserved(self.device)) - self._others()

    def _others(self) -> int:
        return sum([other.weights_bytes for other in list(_all) if other is not self and other.device == self.device])

    def needs(self, weights: Weights) -> Tuple[int, int]:
        """Bytes with which no weight has to leave, and bytes for the largest weight twice."""
        sizes = [weight.size_bytes for weight in weights.all if weight.owners] or [1]
        peak, capacity = max(self._peaks), self.capacity()
        limit = capacity if self.memory is None else min(self.memory, capacity)

        def total(size: int) -> int:
            # The inverse of budget().
            reserved = size * _STEPS * _RESERVED // (_STEPS * (_RESERVED - 1) - _RESERVED)
            bytes_ = max(reserved, (size + peak) * _STEPS // (_STEPS - 1)) + _STEPS
            step = max(capacity // _NEED_STEPS, 1)
            return min((bytes_ + step - 1) // step * step, limit)

        smallest = total(2 * max(sizes))
        return max(total(max(sum(sizes) - self.pool_bytes, 1)), smallest), smallest

    def budget(self) -> int:
        """Bytes for weights: :meth:`private_budget`, and those of shared copies in a store's memory. ``memory`` limits both."""
        if self.memory is None:
            return self.private_budget() + self.pool_bytes
        return self.private_budget() + min(self.pool_bytes, max(self.memory - self._total, 0))

    def private_budget(self) -> int:
        """Bytes for weights in the memory of this program: all of it without a reserve for activations."""
        step = max(self._total // _STEPS, 1)
        reserve = max(max(self._peaks), self._total // _RESERVED)
        return max((self._total - reserve) // step * step, 1)

    def count(self, weights: Used) -> int:
        """Notes the bytes of ``weights`` that this program does not share. Returns them."""
        self.weights_bytes = weights.used - self.shared_bytes
        return self.weights_bytes

    def measure(self, weights: Used, failed: bool = False) -> Optional[int]:
        """Notes the memory beside that of ``weights``. Returns a new budget if it may have changed.

        Reads the device at most every 50 ms, unless an allocation ``failed``.
        """
        self._operations += 1
        now = time.monotonic()
        if now < self._next_at and not failed:
            return None
        self._next_at = now + _INTERVAL_SECONDS
        windows, self._operations = divmod(self._operations, _WINDOW)
        for _ in range(min(windows, 2)):
            self._peaks = [0, self._peaks[0]]
        weights_bytes = self.count(weights)
        activations = max(self.allocated() - weights_bytes, 0)
        if failed:
            # Somewhat more than now is needed.
            activations += max(self._total // _STEPS, activations // 4)
        self._peaks[0] = max(self._peaks[0], activations)
        if self.memory is None:
            free = self.free()
            self._own = max(free - free // _RESERVED + weights_bytes + activations, 1)
        return self.budget()


_all: "weakref.WeakSet[DeviceMemory]" = weakref.WeakSet()
