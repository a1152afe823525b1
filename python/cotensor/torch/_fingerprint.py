"""What a module computes: its code, its settings, its weights."""

from __future__ import annotations

import functools
import operator
import types
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from .._native import content_hash, sampled_hash
from ._tree import NotShared

#: What a module's dictionary has that says nothing about what it computes.
_BOOKKEEPING = frozenset(
    "training _parameters _buffers _modules _non_persistent_buffers_set _backward_pre_hooks _backward_hooks "
    "_is_full_backward_hook _forward_hooks _forward_hooks_with_kwargs _forward_hooks_always_called _forward_pre_hooks "
    "_forward_pre_hooks_with_kwargs _state_dict_hooks _state_dict_pre_hooks _load_state_dict_pre_hooks "
    "_load_state_dict_post_hooks name_or_path _compiled_call_impl".split()
)
#: How deep settings are looked into.
_DEPTH_MAX = 8


class Fingerprint:
    """The fingerprint of a module, kept as long as nothing of it changes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        # The objects themselves, so that another cannot have their identity meanwhile.
        self._settings: List[Any] = []
        self._structure = ""
        self._weights: Optional[Tuple[Any, ...]] = None
        self._hash = ""

    def forget(self) -> None:
        """Has everything hashed again: for changes that cannot be seen."""
        self._settings = []
        self._weights = None

    def current(self) -> str:
        """The hash of the module as it is: of its code and settings, and of the content of its weights.

        Weights are hashed again when torch counted a change of theirs, when they are other tensors or their memory is
        another, or when a sample of their elements is. A change of single elements behind torch's back (through ``.data`` or
        numpy), or inside a list or dict that is a setting, needs :meth:`forget`.
        """
        settings = _settings(self._module)
        same = len(settings) == len(self._settings) and all(map(operator.is_, settings, self._settings))
        if not same:
            self._structure = content_hash(*_structure(self._module))
            self._settings, self._weights = settings, None
        tensors = list(_tensors(self._module))
        weights = (
            [tensor for _, tensor in tensors],
            [(tensor.data_ptr(), _version(tensor)) for _, tensor in tensors],
            sampled_hash(*(tensor for _, tensor in tensors)),
        )
        if self._weights is None or not _same_weights(weights, self._weights):
            parts: List[Any] = [self._structure]
            for name, tensor in tensors:
                parts += [name, tensor.detach()]
            self._hash = content_hash(*parts)
            self._weights = weights
        return self._hash


def _same_weights(now: Tuple[Any, ...], before: Tuple[Any, ...]) -> bool:
    return (
        len(now[0]) == len(before[0]) and all(map(operator.is_, now[0], before[0])) and now[1:] == before[1:]
    )


def _settings(module: torch.nn.Module) -> List[Any]:
    """Everything whose replacement changes what the module is, quick to compare."""
    found: List[Any] = []
    for part in module.modules():
        found.extend(vars(part).values())
        config = vars(part).get("config")
        if config is not None and hasattr(config, "__dict__"):
            found.extend(vars(config).values())
        if part is not module and (part._forward_hooks or part._forward_pre_hooks):
            raise NotShared("hooks on an inner module")
    return found


def _tensors(module: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _version(tensor: torch.Tensor) -> int:
    if tensor.device.type != "cpu":
        raise NotShared(f"weights on {tensor.device}")
    if tensor.is_inference():
        raise NotShared("weights that torch does not watch (inference mode)")
    return tensor._version


def _structure(module: torch.nn.Module) -> List[str]:
    parts: List[str] = []
    for name, part in module.named_modules(remove_duplicate=False):
        kind = type(part)
        parts += [name, f"{kind.__module__}.{kind.__qualname__}"]
        if part is not module and "forward" in vars(part):
            raise NotShared(f"{name} has a forward of its own")
        parts.append(_code(kind.forward))
        for setting, value in sorted(vars(part).items()):
            if setting not in _BOOKKEEPING and not (part is module and setting == "forward"):
                parts += [setting, _setting(value)]
    return parts


def _code(function: Any) -> str:
    """What a function's code is; of one that is not Python's, its name."""
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return getattr(function, "__qualname__", "?")
    return _code_hash(code)


@functools.lru_cache(maxsize=4096)
def _code_hash(code: types.CodeType) -> str:
    return content_hash(*_code_parts(code))


def _code_parts(code: types.CodeType) -> List[str]:
    parts = [code.co_code.hex(), repr(code.co_names)]
    for constant in code.co_consts:
        parts += _code_parts(constant) if isinstance(constant, types.CodeType) else [repr(constant)]
    return parts


def _setting(value: Any, depth: int = 0) -> str:
    """A setting in words that are the same in every process; what has none is left to the code and the weights."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)):
        return repr(value)
    if depth < _DEPTH_MAX:
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(_setting(item, depth + 1) for item in value)}]"
        if isinstance(value, (set, frozenset)):
            return f"{{{', '.join(sorted(_setting(item, depth + 1) for item in value))}}}"
        if isinstance(value, dict):
            return _mapping(value, depth)
        if hasattr(value, "to_dict"):
            try:
                return _mapping(value.to_dict(), depth)
            except Exception as error:  # whatever somebody's class does
                raise NotShared(f"settings that cannot be read: {error}") from error
    if callable(value):
        return _code(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _mapping(value: Dict[Any, Any], depth: int) -> str:
    shown = (f"{key!r}: {_setting(item, depth + 1)}" for key, item in value.items() if key not in _BOOKKEEPING)
    return f"{{{', '.join(sorted(shown))}}}"


def environment() -> List[str]:
    """What else decides the bits of a result."""
    return [
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        str(torch.get_default_dtype()),
        str(torch.get_float32_matmul_precision()),
        str((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))),
        str(torch.backends.mkldnn.enabled),
    ]
