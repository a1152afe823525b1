"""``torch.autocast("simulated")``, with the rules that CUDA has for the most common operations."""

from __future__ import annotations

from typing import Any, List

import torch
from torch.utils._pytree import tree_map

#: Operations in the dtype of the context, and those in float32. All others run in the dtypes of their arguments.
_LOWER = (
    "linear matmul mm bmm addmm addbmm baddbmm addmv addr mv chain_matmul linalg_multi_dot einsum conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d.input conv_transpose3d.input prelu scaled_dot_product_attention"
)
_FLOAT32 = (
    "softmax.int log_softmax.int layer_norm group_norm norm.Scalar exp log log2 log10 pow.Tensor_Scalar rsqrt reciprocal cumsum "
    "cumprod prod sum mse_loss nll_loss l1_loss smooth_l1_loss cross_entropy_loss binary_cross_entropy_with_logits kl_div"
)


def register(keep: List[Any]) -> None:
    """Registers the rules; they last as long as what is added to ``keep``."""
    library: Any = torch.library.Library
    others = library("_", "IMPL", "AutocastPrivateUse1")
    others.fallback(torch.library.fallthrough_kernel)
    casting = library("aten", "IMPL", "AutocastPrivateUse1")
    keep += [others, casting]
    for name in _LOWER.split():
        _cast(casting, name, None)
    for name in _FLOAT32.split():
        _cast(casting, name, torch.float32)


def _cast(casting: Any, name: str, dtype: Any) -> None:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
    keys: Any = torch._C.DispatchKey

    def run(*args: Any, **kwargs: Any) -> Any:
        target = dtype or torch.get_autocast_dtype("simulated")

        def cast(value: Any) -> Any:
            eligible = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
            return value.to(target) if eligible and value.device.type == "simulated" else value

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(keys.AutocastPrivateUse1)):
            return operation(*tree_map(cast, args), **tree_map(cast, kwargs))

    casting.impl(operation, run)
