"""Arguments of one operation that are on several devices."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch

from .arguments import Args, Kwargs, mapped, nested, tensors
from .operations import Kind, kind_of
from .simulated.tensor import raw_storage

#: Tensors of other devices, their copies for one operation, and the versions of the copies.
Moved = List[Tuple[torch.Tensor, torch.Tensor, Optional[int]]]


def devices_of(values: Any) -> Dict[torch.device, None]:
    """The devices of the tensors that are not on the host, in their order."""
    found = [value.device for value in nested(values) if not value.is_cpu]
    return dict.fromkeys(found)


def written(func: Any, args: Args, kwargs: Kwargs, statistics: List[torch.Tensor]) -> List[torch.Tensor]:
    """The tensors of devices that an operation writes, ``statistics`` among them: it has to run there."""
    out = kwargs.get("out")
    found = tensors(out) if out is not None else tensors(args[0]) if args and kind_of(func) is Kind.IN_PLACE else []
    return [tensor for tensor in (*found, *statistics) if not tensor.is_cpu]


class Kept:
    """Copies of tensors on other devices, as long as the tensors live and do not change: many operations use one mask."""

    def __init__(self) -> None:
        self._copies: Dict[Tuple[int, torch.device], Tuple["weakref.ref[torch.Tensor]", int, torch.Tensor]] = {}

    def copy(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The copy of a tensor on a device."""
        if tensor.is_inference():
            return tensor.to(device)
        key, copies = (id(tensor), device), self._copies
        linked = tensor.requires_grad and torch.is_grad_enabled()
        found = copies.get(key)
        if found is not None and found[0]() is tensor and found[1] == tensor._version and found[2].requires_grad == linked:
            return found[2]
        copy = tensor.to(device)
        copies[key] = weakref.ref(tensor, lambda _: copies.pop(key, None) and None), tensor._version, copy
        return copy

    def forget(self, tensor: torch.Tensor) -> None:
        """A tensor is written, perhaps under the version of another one (``data``)."""
        storage = raw_storage(tensor)
        for key, (source, _, _) in list(self._copies.items()):
            kept = source()
            if kept is None or raw_storage(kept) == storage:
                self._copies.pop(key, None)

    def clear(self) -> None:
        """Frees all copies."""
        self._copies.clear()


def gathered(values: Any, device: torch.device, moved: Moved, kept: Kept) -> Any:
    """The values with copies on ``device`` of those tensors that are on other devices; adds these to ``moved``."""
    if all([other == device for other in devices_of(values)]):
        return values
    copies: Dict[int, torch.Tensor] = {}

    def move(value: torch.Tensor) -> torch.Tensor:
        if value.is_cpu or value.device == device:
            return value
        copy = copies.get(id(value))
        if copy is None:
            copy = copies[id(value)] = kept.copy(value, device)
            moved.append((value, copy, None if copy.is_inference() else copy._version))
        return copy

    return mapped(move, values)


def write_back(moved: Moved) -> None:
    """Copies what an operation wrote into copies of :func:`gathered` to their tensors."""
    for tensor, copy, version in moved:
        if version is not None and copy._version != version:
            with torch.no_grad():
                tensor.detach().copy_(copy.detach())
