"""How much of a device's memory the weights of a program may use."""

from __future__ import annotations

import time
from typing import Any, Optional

import torch

#: The share of the memory that is kept for activations before they are measured, and of free memory that is left to others.
_RESERVED = 8
#: Budgets are multiples of the memory divided by this, so that plans do not change with every measurement.
_STEPS = 32
#: Managed operations of one window of measurements.
_WINDOW = 256
#: Free memory is read at most this often.
_INTERVAL_SECONDS = 0.05


class DeviceMemory:
    """The memory of a device, shared by the weights and the activations of this program."""

    def __init__(self, device: torch.device, memory: Optional[int]) -> None:
        self.module: Any = torch.get_device_module(device)
        self.device = device
        #: Bytes that the program may use; None: what is free.
        self.memory = memory
        self._peaks = [0, 0]
        self._operations = 0
        self._read_at = float("-inf")
        self._total = memory if memory is not None else self.free()

    def free(self) -> int:
        """Free bytes of the device, other programs included."""
        return int(self.module.mem_get_info(self.device)[0])

    def allocated(self) -> int:
        """Bytes of this program's tensors."""
        return int(self.module.memory_allocated(self.device))

    def budget(self) -> int:
        """Bytes for weights: the memory without a reserve for activations."""
        step = max(self._total // _STEPS, 1)
        reserve = max(max(self._peaks), self._total // _RESERVED)
        return max((self._total - reserve) // step * step, 1)

    def measure(self, weights_bytes: int, failed: bool = False) -> Optional[int]:
        """Notes the memory beside ``weights_bytes`` of weights. Returns a new budget if it may have changed.

        Reads the device at most every 50 ms, unless an allocation ``failed``.
        """
        self._operations += 1
        if self._operations % _WINDOW == 0:
            self._peaks = [0, self._peaks[0]]
        now = time.monotonic()
        if now - self._read_at < _INTERVAL_SECONDS and not failed:
            return None
        self._read_at = now
        activations = max(self.allocated() - weights_bytes, 0)
        if failed:
            # Somewhat more than now is needed.
            activations += max(self._total // _STEPS, activations // 4)
        self._peaks[0] = max(self._peaks[0], activations)
        if self.memory is None:
            free = self.free()
            self._total = max(free - free // _RESERVED + weights_bytes + activations, 1)
        return self.budget()
