"""What a module computes: its code, its settings, its weights."""

from __future__ import annotations

import operator
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from .._native import content_hash, sampled_hash
from ._code import is_library
from ._settings import Words, fields, has_fields
from ._tree import NotShared

#: What a module's dictionary has that says nothing about what it computes.
_BOOKKEEPING = frozenset(
    "training _parameters _buffers _modules _non_persistent_buffers_set _backward_pre_hooks _backward_hooks "
    "_is_full_backward_hook _forward_hooks _forward_hooks_with_kwargs _forward_hooks_always_called _forward_pre_hooks "
    "_forward_pre_hooks_with_kwargs _state_dict_hooks _state_dict_pre_hooks _load_state_dict_pre_hooks "
    "_load_state_dict_post_hooks name_or_path _compiled_call_impl".split()
)
#: How deep settings are looked into for a change. What is deeper is hashed, but needs ``forget`` when it changes.
_DEPTH_MAX = 4


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
        numpy), or of a global that the code reads, needs :meth:`forget`.
        """
        inner = parts(self._module)
        settings = _settings(self._module, inner)
        same = len(settings) == len(self._settings) and all(map(operator.is_, settings, self._settings))
        if not same:
            self._structure = content_hash(*_structure(self._module))
            self._settings, self._weights = settings, None
        tensors = _tensors(inner)
        weights = (
            tensors,
            [(tensor.data_ptr(), _version(tensor)) for tensor in tensors],
            sampled_hash(*tensors),
        )
        if self._weights is None or not _same_weights(weights, self._weights):
            words: List[Any] = [self._structure]
            for name, tensor in _named_tensors(self._module):
                words += [name, tensor.detach()]
            self._hash = content_hash(*words)
            self._weights = weights
        return self._hash


def _same_weights(now: Tuple[Any, ...], before: Tuple[Any, ...]) -> bool:
    return (
        len(now[0]) == len(before[0]) and all(map(operator.is_, now[0], before[0])) and now[1:] == before[1:]
    )


def parts(module: torch.nn.Module) -> List[torch.nn.Module]:
    """The module and all that are in it, each once: several times faster than torch's own way, which makes names."""
    found: Dict[int, torch.nn.Module] = {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        if id(part) not in found:
            found[id(part)] = part
            waiting.extend(inner for inner in part._modules.values() if inner is not None)
    return list(found.values())


def _settings(module: torch.nn.Module, inner: List[torch.nn.Module]) -> List[Any]:
    """Everything whose replacement changes what the module is, quick to compare."""
    found: List[Any] = []
    # What is inside is looked at once, unless it is found less deep: every part of a transformer has the same configuration.
    seen: Dict[int, int] = {}
    kinds: Dict[type, None] = {}
    for part in inner:
        for name, value in vars(part).items():
            found.append(value)
            if name not in _BOOKKEEPING:
                _collect(value, found, seen, 0)
        kinds[type(part)] = None
        if part is not module and (part._forward_hooks or part._forward_pre_hooks):
            raise NotShared("hooks on an inner module")
    for kind in kinds:
        for base in kind.__mro__:
            if not is_library(base.__module__):
                found.extend(vars(base).values())
    return found


def _collect(value: Any, found: List[Any], seen: Dict[int, int], depth: int) -> None:
    """What is inside a setting."""
    if depth > _DEPTH_MAX or value is None or type(value) in (bool, int, float, str):
        return
    if seen.get(id(value), depth + 1) <= depth:
        return
    seen[id(value)] = depth
    if isinstance(value, (list, tuple)):
        inner: List[Any] = list(value)
    elif isinstance(value, dict):
        inner = [*value, *value.values()]
    elif has_fields(value) and not isinstance(value, (torch.nn.Module, type)):
        inner = list(fields(value).values())
    else:
        return
    found.extend(inner)
    for one in inner:
        _collect(one, found, seen, depth + 1)


def _tensors(inner: List[torch.nn.Module]) -> List[torch.Tensor]:
    found: List[torch.Tensor] = []
    found += [tensor for part in inner for tensor in part._parameters.values() if tensor is not None]
    found += [tensor for part in inner for tensor in part._buffers.values() if tensor is not None]
    return found


def _named_tensors(module: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _version(tensor: torch.Tensor) -> int:
    # A subclass may mean anything by its memory.
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise NotShared(f"weights of type {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise NotShared(f"weights on {tensor.device}")
    if tensor.is_inference():
        raise NotShared("weights that torch does not watch (inference mode)")
    return tensor._version


def _structure(module: torch.nn.Module) -> List[str]:
    found: List[str] = []
    words = Words(module)
    for name, part in module.named_modules(remove_duplicate=False):
        if part is not module and "forward" in vars(part):
            raise NotShared(f"{name} has a forward of its own")
        found += [name, words.code(type(part))]
        for setting, value in sorted(vars(part).items()):
            if setting not in _BOOKKEEPING and not (part is module and setting == "forward"):
                found += [setting, words.of(value)]
    return found


def environment() -> List[str]:
    """What else decides the bits of a result."""
    return [
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        str(torch.get_default_dtype()),
        str(torch.get_float32_matmul_precision()),
        str((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))),
        str(torch.backends.mkldnn.enabled),
        str(torch.get_num_threads()),
    ]
