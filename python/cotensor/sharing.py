"""Tensors that models share by name, with counted holders, views without copies, and one memory limit.

::

    from cotensor.sharing import TensorSharingManager

    manager = TensorSharingManager(max_memory_mb=2048)
    tensor = manager.register_shared_tensor("bert_embedding", [1, 768], producer_model="bert", consumer_models=["t5"])
    tensor.numpy()[:] = embedding           # in place: no copy
    seen = manager.get_shared_tensor("bert_embedding", "t5").numpy()    # published: read-only, the same memory
"""

from __future__ import annotations

from ._native import SharedTensor, SharedTensorView, TensorSharingManager

__all__ = ["SharedTensor", "SharedTensorView", "TensorSharingManager"]
