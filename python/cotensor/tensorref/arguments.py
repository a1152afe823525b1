"""The arguments of intercepted functions."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from .weights import NOWHERE, Part, Weight, extent

Args = Sequence[Any]
Kwargs = Mapping[str, Any]
_functorch: Any = torch._C._functorch
#: The tensors of the host that an operation uses, by their ids, with the part of a weight that each is, if it is one.
Uses = Dict[int, Tuple[torch.Tensor, Optional[Part]]]


def gather(values: Any, owners: Dict[int, Part], uses: Uses, weights: List[Weight], others: List[torch.Tensor]) -> bool:
    """Adds the tensors of the host to ``uses``: with their owners if these have the memory that they had, and then their weights
    to ``weights``, else to ``others`` as well. Returns whether there are tensors of devices."""
    on_device = False
    for value in values:
        key = id(value)
        owner = owners.get(key)
        if owner is not None and owner.address == value.data_ptr():
            uses[key] = value, owner
            weight = owner.weight
            if weight not in weights:
                weights.append(weight)
        elif isinstance(value, torch.Tensor):
            if value.is_cpu:
                uses[key] = value, None
                others.append(value)
            else:
                on_device = True
        elif isinstance(value, (list, tuple)):
            on_device = gather(value, owners, uses, weights, others) or on_device
    return on_device


def known_weights(uses: Uses) -> Tuple[List[Weight], List[torch.Tensor]]:
    """The weights of the tensors that have an owner with the memory that it had, and the other tensors."""
    weights: Dict[Weight, None] = {}
    others: List[torch.Tensor] = []
    for tensor, part in uses.values():
        if part is None or part.address == NOWHERE:
            others.append(tensor)
        else:
            weights[part.weight] = None
    return list(weights), others


def collect(values: Any) -> Tuple[List[torch.Tensor], bool]:
    """The tensors of the host, and whether there are tensors of devices."""
    uses: Uses = {}
    on_device = gather(values, {}, uses, [], [])
    return [tensor for tensor, _ in uses.values()], on_device


def tensors(value: Any) -> List[torch.Tensor]:
    """The tensors of an argument."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for one in value if isinstance(one, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def replace(values: Any, copies: Dict[int, torch.Tensor]) -> Any:
    """The values with copies instead of their originals, by their ids."""
    replaced: List[Any] = []
    get = copies.get
    for value in values:
        copied = get(id(value))
        if copied is not None:
            replaced.append(copied)
        elif isinstance(value, (list, tuple)):
            parts = replace(value, copies)
            replaced.append(parts if type(value) is list else like(value, parts))
        else:
            replaced.append(value)
    return replaced if isinstance(values, list) else tuple(replaced)


def replace_values(kwargs: Kwargs, copies: Dict[int, torch.Tensor]) -> Dict[str, Any]:
    """:func:`replace` for named arguments."""
    return dict(zip(kwargs, replace(kwargs.values(), copies)))


def nested(value: Any) -> List[torch.Tensor]:
    """The tensors in lists, tuples, dictionaries and data classes."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in _parts(value) for tensor in nested(part)]


def with_copies(value: Any, copies: Dict[int, torch.Tensor]) -> Any:
    """The value with copies in the places of tensors, by their ids."""
    return mapped(lambda tensor: copies.get(id(tensor), tensor), value)


def mapped(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The value with ``function`` of each tensor in lists, tuples, dictionaries and data classes.

    A container in which nothing is replaced stays the same object, so that the program sees what a function puts into it.
    PyTorch's ``tree_map`` leaves cycles of objects.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    before = _parts(value)
    after = [mapped(function, part) for part in before]
    if all([one is other for one, other in zip(before, after)]):
        return value
    if isinstance(value, tuple):
        return like(value, after)
    replaced = copy.copy(value)
    if isinstance(value, list):
        replaced[:] = after
    elif isinstance(value, dict):
        for key, part in zip(value, after):
            replaced[key] = part
    else:
        for field, part in zip(dataclasses.fields(value), after):
            object.__setattr__(replaced, field.name, part)
    return replaced


def like(value: Any, parts: Sequence[Any]) -> Any:
    """A sequence of the type of ``value``: a list, a tuple, one with names, or what PyTorch returns, such as of ``sort``."""
    kind = type(value)
    if kind in (tuple, list) or not hasattr(kind, "_fields"):
        return kind(parts)
    return kind(*parts)


def _parts(value: Any) -> List[Any]:
    """What a container holds."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return []


def argument(args: Args, kwargs: Kwargs, position: int, name: str) -> Optional[torch.Tensor]:
    """The tensor that is one argument, if it is one."""
    value = args[position] if position < len(args) else kwargs.get(name)
    return value if isinstance(value, torch.Tensor) else None


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with memory, below all transforms of ``torch.func``."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy with the same strides, if that needs no more memory than twice the elements; of a conjugate view, one as well."""
    if tensor.layout == torch.sparse_coo and not tensor.requires_grad:
        # Sums of sparse gradients choose their algorithm by the strides of the values.
        indices, values = to_device(tensor._indices(), device), to_device(tensor._values(), device)
        coalesced = tensor.is_coalesced()
        return torch.sparse_coo_tensor(indices, values, tensor.size(), is_coalesced=coalesced, check_invariants=False)
    plain = tensor.layout == torch.strided and not tensor.requires_grad
    if plain and tensor.is_conj():
        # Products of conjugate views round differently than those of their elements.
        return to_device(tensor.conj(), device).conj().detach()
    kept = None if not plain or tensor.is_contiguous() else _copied_extent(tensor)
    if kept is None:
        return tensor.to(device)
    start, end = kept
    flat = tensor.as_strided((end - start,), (1,), start).to(device)
    return flat.as_strided(tensor.size(), tensor.stride(), 0)


def _copied_extent(tensor: torch.Tensor) -> Optional[Tuple[int, int]]:
    """The extent of a tensor, if :func:`to_device` copies the elements between those that it shows, too."""
    if tensor.numel() == 0:
        return None
    start, end = extent(tensor)
    return (start, end) if end - start <= 2 * tensor.numel() else None


def is_copied_as(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether :func:`to_device` of a tensor shows its memory as a tensor with the same elements on another device does."""
    for one in (tensor, copy):
        if one.layout != torch.strided or one.is_conj() or one.is_neg():
            return False
    if tensor.dtype != copy.dtype or tensor.size() != copy.size():
        return False
    if tensor.stride() == copy.stride() or (tensor.is_contiguous() and copy.is_contiguous()):
        return True
    return _copied_extent(tensor) is None


def to_host(value: Any) -> Any:
    """A tensor of a device as one of the host; any other value as it is."""
    return value.to("cpu") if isinstance(value, torch.Tensor) and not (value.is_cpu or value.is_meta) else value
