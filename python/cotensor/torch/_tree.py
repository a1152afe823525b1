"""What a module is given and gives, as tensors and a description of the rest that any process can read."""

from __future__ import annotations

import importlib
from typing import Any, List, Mapping, Optional, Sequence

import torch

from ..errors import CorruptError

#: How deep values may be nested.
DEPTH_MAX = 32


class NotShared(Exception):
    """Why a call is computed as if nothing were shared."""


def describe(value: Any, tensors: List[torch.Tensor], depth: int = 0) -> Any:
    """``value`` as JSON, its tensors taken out into ``tensors``."""
    if depth > DEPTH_MAX:
        raise NotShared("nested too deeply")
    if isinstance(value, torch.Tensor):
        # One that is there twice comes back as one.
        known = next((number for number, tensor in enumerate(tensors) if tensor is value), None)
        if known is None:
            known = len(tensors)
            tensors.append(value)
        return {"tensor": known}
    # Of exactly these types: an enum or a number of numpy would come back as another.
    if value is None or type(value) in (bool, int, float, str):
        return {"plain": value}
    if isinstance(value, (torch.dtype, torch.device)):
        return {"torch": str(value)}
    if type(value) in (list, tuple):
        return {type(value).__name__: [describe(item, tensors, depth + 1) for item in value]}
    if type(value) is dict:
        return {"dict": _entries(value, tensors, depth)}
    if _is_model_output(type(value)):
        kind = type(value)
        return {"output": [kind.__module__, kind.__qualname__, _entries(dict(value.items()), tensors, depth)]}
    raise NotShared(f"a value of type {type(value).__name__}")


def _entries(value: Mapping[Any, Any], tensors: List[torch.Tensor], depth: int) -> List[Any]:
    if not all(isinstance(name, str) for name in value):
        raise NotShared("a dict with keys that are no strings")
    return [[name, describe(item, tensors, depth + 1)] for name, item in value.items()]


def restore(described: Any, tensors: Sequence[torch.Tensor], depth: int = 0) -> Any:
    """The value again."""
    if depth > DEPTH_MAX or not isinstance(described, dict) or len(described) != 1:
        raise CorruptError("no description of a module's output")
    (kind, content), = described.items()
    if kind == "tensor" and isinstance(content, int) and 0 <= content < len(tensors):
        return tensors[content]
    if kind == "plain":
        return content
    if kind in ("list", "tuple") and isinstance(content, list):
        items = [restore(item, tensors, depth + 1) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "dict" and isinstance(content, list):
        return {name: restore(item, tensors, depth + 1) for name, item in content}
    if kind == "output" and isinstance(content, list) and len(content) == 3:
        module, name, entries = content
        return _model_output(module, name)(**{key: restore(item, tensors, depth + 1) for key, item in entries})
    raise CorruptError(f"a module's output cannot have {kind!r} here")


def _is_model_output(kind: type) -> bool:
    """Whether it is one of the output classes of transformers, which are dicts with attributes."""
    return kind.__module__.startswith("transformers.") and any(
        base.__name__ == "ModelOutput" and base.__module__.startswith("transformers.") for base in kind.__mro__
    )


def _model_output(module: str, name: str) -> Any:
    found: Optional[Any] = None
    if isinstance(module, str) and module.startswith("transformers.") and "." not in name:
        found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and _is_model_output(found)):
        raise CorruptError(f"{module}.{name} is no output class of transformers")
    return found
