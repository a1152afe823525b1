"""The dtypes of ``torch.autocast`` on a device, for an operation that runs on the host."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .arguments import Args, Kwargs, mapped

#: Functions that run in float32 on accelerators (PyTorch's list for CUDA); most of them run in the lower dtype on the CPU.
_FLOAT32 = frozenset(
    "acos asin cosh erfinv exp expm1 log log10 log1p log2 pow __pow__ __rpow__ reciprocal rsqrt sinh tan softplus "
    "layer_norm group_norm norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits cross_entropy "
    "cross_entropy_loss dist pdist cdist renorm logsumexp softmax log_softmax softmin cumsum cumprod prod sum".split()
)

#: Functions that run in the lower dtype on accelerators, but not on the CPU.
_LOWER = frozenset("mv addmv addr prelu einsum chain_matmul multi_dot".split())


def as_on(device_type: str, func: Callable[..., Any], name: str, args: Args, kwargs: Kwargs) -> Any:
    """``func`` on tensors of the host, with the dtypes that it has on a device of this type."""
    if not torch.is_autocast_enabled(device_type):
        return func(*args, **kwargs)
    dtype = torch.get_autocast_dtype(device_type)
    if name not in _FLOAT32 and name not in _LOWER:
        # Without a cache of casts: copies on the device are not leaves, so they have none. Their gradients are added in float32.
        with torch.autocast("cpu", dtype=dtype, cache_enabled=False):
            return func(*args, **kwargs)
    lower = (torch.float16, torch.bfloat16)
    before, after = (lower, torch.float32) if name in _FLOAT32 else ((*lower, torch.float32), dtype)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(after) if tensor.dtype in before else tensor

    with torch.autocast("cpu", enabled=False):
        return func(*mapped(cast, args), **mapped(cast, kwargs))
