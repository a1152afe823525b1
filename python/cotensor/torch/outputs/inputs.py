"""The input tensors of a call, in the form that a captured graph gets."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import torch

from ..weights.collect import contiguous_stride
from ..weights.manifest import span
from .tree import NotShared

#: Kernels sum in an order that depends on the alignment of memory in a cache line.
_ALIGNMENT_BYTES = 64


def check_tensor(tensor: torch.Tensor, what: str) -> None:
    """Raises :class:`NotShared` for a tensor with more state than elements, dtype and strides."""
    if type(tensor) is not torch.Tensor:
        raise NotShared(f"{what} of type {type(tensor).__name__}")
    if tensor.requires_grad:
        raise NotShared(f"{what} that requires gradients")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise NotShared(f"{what} on {tensor.device} with layout {tensor.layout}")
    if tensor.is_quantized or tensor.is_nested or tensor.is_complex():
        raise NotShared(f"{what} of dtype {tensor.dtype}")
    if vars(tensor):
        raise NotShared(f"{what} with extra attributes")
    if any(name is not None for name in getattr(tensor, "names", ())):
        raise NotShared(f"{what} with named dimensions")
    if tensor.is_leaf and tensor.grad is not None:
        raise NotShared(f"{what} with a gradient")


def check_inputs(tensors: Sequence[torch.Tensor]) -> None:
    """Raises :class:`NotShared` for inputs that a key cannot describe."""
    extents = []
    for tensor in tensors:
        check_tensor(tensor, "an input")
        start = tensor.data_ptr()
        size = span(tensor.shape, tensor.stride()) * tensor.element_size()
        if size:
            extents.append((start, start + size))
    extents.sort()
    if any(before[1] > after[0] for before, after in zip(extents, extents[1:])):
        raise NotShared("inputs that overlap in memory")


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements and dtype in a storage of exactly their size, in the same order if they are dense.

    An operator such as ``as_strided`` can read the whole storage, so a graph must not get a part of a larger tensor. The stride
    of a dimension of size 1, for which torch allows any, stays, because Python code can read it.
    """
    own = tensor.detach().resolve_neg()
    if not _is_dense(own):
        return own.clone()
    fills = own.storage_offset() == 0 and own.untyped_storage().nbytes() == own.numel() * own.element_size()
    if fills:
        return own
    # A clone would have the standard strides for dimensions of size 1.
    with torch.inference_mode(False):
        return torch.empty(own.numel(), dtype=own.dtype).as_strided(own.shape, own.stride()).copy_(own)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements are contiguous in some order of the dimensions."""
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], -tensor.shape[dim]))
    return tensor.permute(order).is_contiguous()


def for_graph(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy if it is unaligned or has no version counter."""
    return tensor.clone() if tensor.is_inference() or tensor.data_ptr() % _ALIGNMENT_BYTES else tensor


def is_standard(tensor: torch.Tensor) -> bool:
    """Whether the strides are the row-major ones of the shape."""
    return tensor.stride() == contiguous_stride(tuple(tensor.shape))


def signature(described: Any, tensors: Sequence[torch.Tensor]) -> Dict[str, Any]:
    """The kind of a call as JSON: everything but the elements and the sizes that one graph can leave dynamic.

    Sizes 0 and 1 are never dynamic, because torch treats them specially. Nor are the sizes of a tensor that is not row-major.
    """
    return {
        "arguments": described,
        "tensors": [
            [
                str(tensor.dtype),
                [size if size < 2 else "n" for size in tensor.shape] if is_standard(tensor) else list(tensor.shape),
                None if is_standard(tensor) else list(tensor.stride()),
            ]
            for tensor in tensors
        ],
    }


def shapes(tensors: Sequence[torch.Tensor]) -> Tuple[Tuple[int, ...], ...]:
    """The shapes of the tensors."""
    return tuple(tuple(tensor.shape) for tensor in tensors)


def resized(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The tensor in another shape: a dimension is cut, or extended by its last element."""
    for dim, size in enumerate(shape):
        if size != tensor.shape[dim]:
            indices = torch.arange(size).clamp_(max=tensor.shape[dim] - 1)
            tensor = tensor.index_select(dim, indices)
    return tensor.contiguous()


def strides(tensors: Sequence[torch.Tensor]) -> List[Any]:
    """The strides of each tensor that is not row-major, else ``None``."""
    return [None if is_standard(tensor) else list(tensor.stride()) for tensor in tensors]
