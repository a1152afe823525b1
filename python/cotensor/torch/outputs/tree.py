"""Arguments and outputs of a module as tensors and a JSON description of their structure."""

from __future__ import annotations

import importlib
from typing import Any, List, Mapping, Sequence

import torch

from ...errors import CorruptError

#: The deepest nesting of values.
DEPTH_MAX = 32
#: Dict-like classes by package: the base class of outputs (made from keywords), and input classes (made from a dict).
_OUTPUTS = {"transformers": "ModelOutput", "diffusers": "BaseOutput"}
_INPUTS = {"transformers": ("BatchEncoding", "BatchFeature")}


class NotShared(Exception):
    """The reason why the output of a call is not shared."""


def describe(value: Any, tensors: List[torch.Tensor], depth: int = 0) -> Any:
    """``value`` as JSON. Its tensors are appended to ``tensors``."""
    if depth > DEPTH_MAX:
        raise NotShared("nested too deeply")
    if isinstance(value, torch.Tensor):
        # A repeated tensor is restored as one object.
        known = next((number for number, tensor in enumerate(tensors) if tensor is value), None)
        if known is None:
            known = len(tensors)
            tensors.append(value)
        return {"tensor": known}
    # Exactly these types: an enum or a numpy scalar would lose its type.
    if value is None or type(value) in (bool, int, float, str):
        return {"plain": value}
    if isinstance(value, (torch.dtype, torch.device)):
        return {"torch": str(value)}
    if type(value) in (list, tuple):
        return {type(value).__name__: [describe(item, tensors, depth + 1) for item in value]}
    if type(value) is dict:
        return {"dict": _entries(value, tensors, depth)}
    for word, known_class in (("output", _is_output), ("input", _is_input)):
        if known_class(type(value)):
            kind = type(value)
            return {word: [kind.__module__, kind.__qualname__, _entries(dict(value.items()), tensors, depth)]}
    raise NotShared(f"a value of type {type(value).__name__}")


def _entries(value: Mapping[Any, Any], tensors: List[torch.Tensor], depth: int) -> List[Any]:
    if not all(type(name) is str for name in value):
        raise NotShared("a dict whose keys are not strings")
    return [[name, describe(item, tensors, depth + 1)] for name, item in value.items()]


def restore(described: Any, tensors: Sequence[torch.Tensor], depth: int = 0) -> Any:
    """Restores the value from its description and tensors."""
    if depth > DEPTH_MAX or not isinstance(described, dict) or len(described) != 1:
        raise CorruptError("not a description of a module's output")
    (kind, content), = described.items()
    if kind == "tensor" and isinstance(content, int) and 0 <= content < len(tensors):
        return tensors[content]
    if kind == "plain":
        return content
    if kind == "torch" and isinstance(content, str):
        return _of_torch(content)
    if kind in ("list", "tuple") and isinstance(content, list):
        items = [restore(item, tensors, depth + 1) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "dict" and isinstance(content, list):
        return {name: restore(item, tensors, depth + 1) for name, item in content}
    if kind in ("output", "input") and isinstance(content, list) and len(content) == 3:
        module, name, entries = content
        made = {key: restore(item, tensors, depth + 1) for key, item in entries}
        found = _class(module, name)
        if kind == "output" and _is_output(found):
            return found(**made)
        if kind == "input" and _is_input(found):
            return found(made)
    raise CorruptError(f"unexpected {kind!r} in a description of a module's output")


def _of_torch(name: str) -> Any:
    found = getattr(torch, name[len("torch.") :], None) if name.startswith("torch.") else None
    return found if isinstance(found, torch.dtype) else torch.device(name)


def _is_output(kind: Any) -> bool:
    """Whether it is a library's output class, whose constructor takes the entries as keywords."""
    base = _OUTPUTS.get(_package(kind))
    return base is not None and any(one.__name__ == base and _package(one) == _package(kind) for one in kind.__mro__)


def _is_input(kind: Any) -> bool:
    """Whether it is the return class of a tokenizer or processor, whose constructor takes a dict."""
    return isinstance(kind, type) and kind.__name__ in _INPUTS.get(_package(kind), ())


def _package(kind: Any) -> str:
    return kind.__module__.partition(".")[0] if isinstance(kind, type) else ""


def _class(module: Any, name: Any) -> Any:
    known = isinstance(module, str) and module.partition(".")[0] in {*_OUTPUTS, *_INPUTS}
    if not known or not isinstance(name, str) or "." in name:
        return None
    return getattr(importlib.import_module(module), name, None)
