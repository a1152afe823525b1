"""The structure of a nested state: dicts, lists and tuples of tensors and plain values, as that of an optimizer.

The tensors of a state are published under the paths to them, such as ``optimizer.state.0.exp_avg``. The structure is JSON beside
them, which names a tensor where the state has one.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Tuple

import torch

from ...errors import CorruptError, InvalidError, UnsupportedError
from .manifest import TENSOR

#: The deepest state that is published and read.
DEPTH_MAX = 64
#: The field of a manifest's source that has the structure.
STRUCTURE = "structure"

Found = List[Tuple[str, str, torch.Tensor]]


def split(state: Any) -> Tuple[Found, Dict[str, Any]]:
    """The tensors of a state, and the source for the manifest: empty for a plain state dict of tensors.

    Raises :class:`UnsupportedError` with the path of a value that is neither a tensor, a number, a string, ``None``, a dict, a
    list nor a tuple, and :class:`InvalidError` for a state that is too deep or contains itself.
    """
    if not isinstance(state, (Mapping, list, tuple)):
        raise InvalidError(f"mapping: pass a state dict, not {type(state).__name__}", field="mapping")
    if isinstance(state, Mapping) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        return [(name, TENSOR, value) for name, value in state.items()], {}
    found: Found = []
    names: Dict[str, int] = {}

    def encode(value: Any, path: str, depth: int) -> List[Any]:
        if depth > DEPTH_MAX:
            raise InvalidError(f"{path[:80]}: deeper than {DEPTH_MAX} levels", field=path[:80])
        if isinstance(value, torch.Tensor):
            # Two paths can have the same text: {"a": {"b": x}} and {"a.b": x}.
            count = names[path] = names.get(path, 0) + 1
            name = path if count == 1 else f"{path}#{count}"
            found.append((name, TENSOR, value))
            return ["tensor", name]
        if isinstance(value, Mapping):
            return ["dict", [[_key(key, path), encode(one, _joined(path, key), depth + 1)] for key, one in value.items()]]
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, [encode(one, _joined(path, index), depth + 1) for index, one in enumerate(value)]]
        if value is None or type(value) in (bool, int, str):
            return ["value", value]
        if type(value) is float:
            # JSON has no infinities and no NaN.
            return ["value", value] if math.isfinite(value) else ["float", repr(value)]
        raise UnsupportedError(
            f"{path or 'the state'}: a {type(value).__name__} cannot be published: use a tensor, a number, a string, None, a "
            "dict, a list or a tuple",
            field=path,
        )

    return found, {STRUCTURE: encode(state, "", 0)}


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _key(key: Any, path: str) -> Any:
    if key is None or type(key) in (bool, int, str):
        return key
    raise UnsupportedError(f"{path or 'the state'}: a key is a {type(key).__name__}, not a string or a number", field=path)


def joined(name: str, structure: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The state of this structure.

    Raises :class:`CorruptError` for a structure that :func:`split` does not make.
    """

    def wrong(why: str) -> CorruptError:
        return CorruptError(f"{name}: the structure of the state: {why}", field=name)

    def decode(node: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise wrong(f"deeper than {DEPTH_MAX} levels")
        if not isinstance(node, list) or len(node) != 2:
            raise wrong("a node is not a pair")
        kind, value = node
        if kind == "value" and not isinstance(value, (dict, list)):
            return value
        if kind == "float" and value in ("nan", "inf", "-inf"):
            return float(value)
        if kind == "tensor":
            if not isinstance(value, str) or value not in tensors:
                raise wrong("a tensor is missing")
            return tensors[value]
        if not isinstance(value, list):
            raise wrong("a node without children")
        if kind == "list":
            return [decode(one, depth + 1) for one in value]
        if kind == "tuple":
            return tuple(decode(one, depth + 1) for one in value)
        if kind == "dict" and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            if any(isinstance(key, (dict, list, float)) for key, _ in value):
                raise wrong("a key of another type")
            return {key: decode(one, depth + 1) for key, one in value}
        raise wrong("an unknown node")

    return decode(structure, 0)
