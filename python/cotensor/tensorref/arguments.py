"""The arguments of intercepted functions."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch

from .weights import extent

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


def collect(values: Any, on_host: List[torch.Tensor]) -> bool:
    """Adds the tensors of the host to ``on_host``. Returns whether there are others."""
    others = False
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_cpu:
                on_host.append(value)
            else:
                others = True
        elif isinstance(value, (list, tuple)):
            others = collect(value, on_host) or others
    return others


def tensors(value: Any) -> List[torch.Tensor]:
    """The tensors of an argument."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for one in value if isinstance(one, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def replace(values: Any, copies: Dict[int, torch.Tensor]) -> Any:
    """The values with copies instead of their originals."""
    replaced: List[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            replaced.append(copies.get(id(value), value))
        elif isinstance(value, (list, tuple)):
            parts = replace(value, copies)
            replaced.append(parts if type(value) in (list, tuple) else type(value)(*parts))
        else:
            replaced.append(value)
    return replaced if isinstance(values, list) else tuple(replaced)


def replace_values(kwargs: Kwargs, copies: Dict[int, torch.Tensor]) -> Dict[str, Any]:
    """:func:`replace` for named arguments."""
    return dict(zip(kwargs, replace(kwargs.values(), copies)))


def argument(args: Args, kwargs: Kwargs, position: int, name: str) -> Optional[torch.Tensor]:
    """The tensor that is one argument, if it is one."""
    value = args[position] if position < len(args) else kwargs.get(name)
    return value if isinstance(value, torch.Tensor) else None


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy with the same strides, if that needs no more memory than twice the elements."""
    plain = tensor.layout == torch.strided and not tensor.requires_grad and not tensor.is_conj()
    if not plain or tensor.is_contiguous() or tensor.numel() == 0:
        return tensor.to(device)
    start, end = extent(tensor)
    if end - start > 2 * tensor.numel():
        return tensor.to(device)
    flat = tensor.as_strided((end - start,), (1,), start).to(device)
    return flat.as_strided(tensor.size(), tensor.stride(), 0)
