"""A simulated accelerator for PyTorch, in the memory of the host, with a limit and counted copies.

::

    device = simulated_device(memory="64MiB")
    model.to("simulated")                               # torch.device("simulated", 0)
    model(x.to("simulated"))

Mistakes that a GPU reports fail here as well: tensors on two devices in one operation, ``numpy()`` of a tensor on the device, and
more tensors than the memory holds (``torch.OutOfMemoryError``). Operations run on the CPU at its speed, with its results.
"""

from __future__ import annotations

from .device import SimulatedDevice, simulated_device
from .memory import Buffer, SimulatedMemory
from .tensor import SimulatedTensor

__all__ = ["Buffer", "SimulatedDevice", "SimulatedMemory", "SimulatedTensor", "simulated_device"]
