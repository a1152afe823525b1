"""torch.TensorRef: references to tensors, independent of their device.

::

    import torchTensorRef                       # puts TensorRef into torch
    import torch

    torchTensorRef.tensorsManager.device = "cuda"
    hi = torch.rand(2, 3)                       # a TensorRef; its target is on the CPU
    hi.toGPU()
    print(hi + 1)                               # computed on the device

From now on, functions of torch in this thread that make tensors return :class:`TensorRef`. :func:`eject` ends that.
"""

from __future__ import annotations

from cotensor.tensorref.refs import ProxyInfo, TensorRef, TensorsManager, eject, inject, tensorsManager

__all__ = ["ProxyInfo", "TensorRef", "TensorsManager", "eject", "inject", "tensorsManager"]

inject()
