"""Arguments of one operation that are on several devices."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .arguments import Args, Kwargs, tensors
from .operations import Kind, kind_of

#: Tensors of other devices, their copies for one operation, and the versions of the copies.
Moved = List[Tuple[torch.Tensor, torch.Tensor, Optional[int]]]


def devices_of(values: Any) -> Dict[torch.device, None]:
    """The devices of the tensors that are not on the host, in their order."""
    found = [value.device for value in tree_leaves(values) if isinstance(value, torch.Tensor) and not value.is_cpu]
    return dict.fromkeys(found)


def written_on(func: Any, args: Args, kwargs: Kwargs) -> Optional[torch.device]:
    """The device of the tensors that an operation writes: it has to run there."""
    out = kwargs.get("out")
    written = tensors(out) if out is not None else tensors(args[0]) if args and kind_of(func) is Kind.IN_PLACE else []
    return next(iter(devices_of(written)), None)


def gathered(values: Any, device: torch.device, moved: Moved) -> Any:
    """The values with copies on ``device`` of those tensors that are on other devices; adds these to ``moved``."""
    if all([other == device for other in devices_of(values)]):
        return values
    copies: Dict[int, torch.Tensor] = {}

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_cpu or value.device == device:
            return value
        copy = copies.get(id(value))
        if copy is None:
            copy = copies[id(value)] = value.to(device)
            moved.append((value, copy, None if copy.is_inference() else copy._version))
        return copy

    return tree_map(move, values)


def write_back(moved: Moved) -> None:
    """Copies what an operation wrote into copies of :func:`gathered` to their tensors."""
    for tensor, copy, version in moved:
        if version is not None and copy._version != version:
            with torch.no_grad():
                tensor.detach().copy_(copy.detach())
