"""PyTorch models larger than the memory of their accelerator.

::

    import cotensor.tensorref

    with cotensor.tensorref.offload(model, "cuda", memory="4GiB"):
        model.generate(**inputs)

The model is not changed. Its weights stay on the host, and each operation gets copies on the device. The strategy "flow" records
the operations, plans which weights stay on the device, and copies others before they are needed.

:func:`enable` does the same without a block. :class:`Middleware` sees and changes operations and moves. :func:`simulated_device`
simulates an accelerator on machines without one.
"""

from __future__ import annotations

from .events import Middleware, Move, Operation
from .record import Recorder
from .session import Expected, Offload, disable, enable, offload
from .simulated import SimulatedDevice, simulated_device
from .strategy import Strategy
from .timeline import Timeline

__all__ = [
    "Expected",
    "Middleware",
    "Move",
    "Offload",
    "Operation",
    "Recorder",
    "SimulatedDevice",
    "Strategy",
    "Timeline",
    "disable",
    "enable",
    "offload",
    "simulated_device",
]
