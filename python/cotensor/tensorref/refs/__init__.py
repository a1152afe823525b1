"""The API of torch.TensorRef; programs import it as ``torchTensorRef``."""

from __future__ import annotations

from .injection import eject, inject
from .manager import TensorsManager, tensorsManager
from .tensor_ref import ProxyInfo, TensorRef

__all__ = ["ProxyInfo", "TensorRef", "TensorsManager", "eject", "inject", "tensorsManager"]
