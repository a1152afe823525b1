"""The tensors that a module is called with, in the form in which a captured graph gets them."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import torch

from ..weights.collect import contiguous_stride
from ..weights.manifest import span
from .tree import NotShared

#: Kernels add in another order where memory begins elsewhere in a cache line.
_ALIGNMENT_BYTES = 64


def check_tensor(tensor: torch.Tensor, what: str) -> None:
    """Raises :class:`NotShared` for a tensor that is more than its elements, their dtype and their strides."""
    if type(tensor) is not torch.Tensor:
        raise NotShared(f"{what} of type {type(tensor).__name__}")
    if tensor.requires_grad:
        raise NotShared(f"{what} that wants gradients")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise NotShared(f"{what} on {tensor.device} with layout {tensor.layout}")
    if tensor.is_quantized or tensor.is_nested or tensor.is_complex():
        raise NotShared(f"{what} of dtype {tensor.dtype}")
    if vars(tensor):
        raise NotShared(f"{what} with attributes of its own")
    if any(name is not None for name in getattr(tensor, "names", ())):
        raise NotShared(f"{what} with named dimensions")
    if tensor.is_leaf and tensor.grad is not None:
        raise NotShared(f"{what} with a gradient")


def check_inputs(tensors: Sequence[torch.Tensor]) -> None:
    """Raises :class:`NotShared` for inputs that no key describes."""
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
    """The same elements and dtype in memory that holds nothing else, in the same order if they are dense.

    An operator such as ``as_strided`` reads all of the memory, so a graph must not get a part of a larger tensor. Row-major
    tensors have the strides that follow from the shape: a dimension of size 1 may have any.
    """
    own = tensor.detach().resolve_neg()
    fills = own.storage_offset() == 0 and own.untyped_storage().nbytes() == own.numel() * own.element_size()
    if own.is_contiguous():
        own = own if fills else own.clone(memory_format=torch.contiguous_format)
        return own if is_standard(own) else own.as_strided(own.shape, contiguous_stride(tuple(own.shape)))
    return own if fills and _is_dense(own) else own.clone()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie side by side, in whatever order of the dimensions."""
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], -tensor.shape[dim]))
    return tensor.permute(order).is_contiguous()


def for_graph(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy: aligned as torch's own memory is, and with a counter of writes."""
    return tensor.clone() if tensor.is_inference() or tensor.data_ptr() % _ALIGNMENT_BYTES else tensor


def is_standard(tensor: torch.Tensor) -> bool:
    """Whether the strides follow from the shape."""
    return tensor.stride() == contiguous_stride(tuple(tensor.shape))


def signature(described: Any, tensors: Sequence[torch.Tensor]) -> Dict[str, Any]:
    """Everything about a call but the elements and those sizes that one graph may leave open, as JSON.

    Sizes 0 and 1 are never open: torch treats them apart. Nor are those of a tensor with other strides than row-major ones.
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
    """The shapes alone."""
    return tuple(tuple(tensor.shape) for tensor in tensors)


def resized(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Another shape from the same elements: the first ones of a dimension, or all and its last one again."""
    for dim, size in enumerate(shape):
        if size != tensor.shape[dim]:
            indices = torch.arange(size).clamp_(max=tensor.shape[dim] - 1)
            tensor = tensor.index_select(dim, indices)
    return tensor.contiguous()


def strides(tensors: Sequence[torch.Tensor]) -> List[Any]:
    """The strides of tensors, where they do not follow from the shape."""
    return [None if is_standard(tensor) else list(tensor.stride()) for tensor in tensors]
