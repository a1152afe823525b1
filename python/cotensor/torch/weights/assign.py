"""Assigns published tensors to a module: a checked plan first, then all assignments at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch.nn.parameter import is_lazy

from ...errors import InvalidError, UnsupportedError
from .collect import DTYPES, NamedTensor, is_plain, named_tensors
from .manifest import NON_PERSISTENT, PARAMETER, TENSOR, Manifest, TensorEntry
from .place import HOST, Place


@dataclass
class Plan:
    """For each published tensor of the module: its index, and its places in the module."""

    targets: List[Tuple[int, List[NamedTensor]]] = field(default_factory=list)
    missing: List[str] = field(default_factory=list)
    unexpected: List[str] = field(default_factory=list)


class Naming(NamedTuple):
    """The mapping from published names to a module's names."""

    #: Selects the published names with this prefix. The module's names are without it.
    prefix: str = ""
    #: Regular expressions and their replacements, applied in turn to the name after the prefix.
    replaced: Tuple[Tuple["re.Pattern[str]", str], ...] = ()
    #: Whether the module computes its non-persistent buffers. Published ones are not assigned.
    computes_buffers: bool = False

    def own(self, published: str) -> Optional[str]:
        """The module's name for a published name; ``None`` without the prefix."""
        if not published.startswith(self.prefix):
            return None
        name = published[len(self.prefix) :]
        for pattern, replacement in self.replaced:
            name = pattern.sub(replacement, name)
        return name


def naming(prefix: Any, key_mapping: Any) -> Naming:
    """The mapping of two options. Raises :class:`InvalidError` for wrong options."""
    if not isinstance(prefix, str):
        raise InvalidError(f"prefix: pass a string, not {type(prefix).__name__}", field="prefix")
    if key_mapping is None:
        return Naming(prefix)
    if not isinstance(key_mapping, Mapping):
        raise InvalidError(f"key_mapping: pass a dict, not {type(key_mapping).__name__}", field="key_mapping")
    replaced = []
    for pattern, replacement in key_mapping.items():
        try:
            compiled = re.compile(pattern)
            compiled.sub(replacement, "")
        except (TypeError, re.error) as error:
            message = f"key_mapping: {pattern!r} to {replacement!r}: {error}"
            raise InvalidError(message, field="key_mapping") from None
        replaced.append((compiled, replacement))
    return Naming(prefix, tuple(replaced))


def renamed(manifest: Manifest, names: Naming) -> List[TensorEntry]:
    """The published tensors under the module's names. Tensors without the prefix have no places.

    Raises :class:`InvalidError` if two tensors get one name.
    """
    if not names.prefix and not names.replaced:
        return manifest.tensors
    entries = []
    published: Dict[str, str] = {}
    for entry in manifest.tensors:
        kept = []
        for place, kind in entry.places:
            own = names.own(place)
            if own is None:
                continue
            if published.setdefault(own, place) != place:
                raise InvalidError(f"{own}: key_mapping maps both {published[own]} and {place} to this name", field=own)
            kept.append((own, kind))
        entries.append(entry._replace(places=kept))
    return entries


def plan(
    module: torch.nn.Module,
    manifest: Manifest,
    model: str,
    *,
    strict: bool,
    same_dtype: bool,
    names: Naming = Naming(),  # noqa: B008 - immutable
    place: Place = HOST,
) -> Plan:
    """Plans the assignments without changing the module. ``place`` has the published tensors.

    Raises :class:`InvalidError` with the name that does not fit.
    """
    own = named_tensors(module)
    by_name = {each[0]: each for each in own}
    tied: Dict[int, List[NamedTensor]] = {}
    for each in own:
        tied.setdefault(id(each[2]), []).append(each)
    made = Plan()
    taken: Dict[int, Tuple[int, str]] = {}
    for index, entry in enumerate(renamed(manifest, names)):
        # Of names that are tied in the module, one published name is enough.
        found: Dict[int, str] = {}
        for name, kind in entry.places:
            known = by_name.get(name)
            if known is None:
                if kind != NON_PERSISTENT:
                    made.unexpected.append(name)
                continue
            if names.computes_buffers and known[1] == NON_PERSISTENT:
                continue
            if kind != TENSOR and (kind == PARAMETER) != (known[1] == PARAMETER):
                raise InvalidError(f"{name}: a {known[1]} in the module, published as a {kind}", field=name)
            found.setdefault(id(known[2]), name)
        for which, name in found.items():
            tensor = by_name[name][2]
            before = taken.setdefault(which, (index, name))
            if before[0] != index:
                message = f"{name}: tied to {before[1]} in the module, but published as another tensor"
                raise InvalidError(message, field=name)
            _check(name, tensor, entry, same_dtype, place)
        if found:
            made.targets.append((index, [each for which in found for each in tied[which]]))
    for name, kind, tensor, _, _ in own:
        if id(tensor) in taken:
            continue
        if kind != NON_PERSISTENT:
            made.missing.append(name)
        elif tensor.is_meta and not names.computes_buffers:
            raise InvalidError(f"{name}: a buffer on the meta device that was not published", field=name)
    if strict and (made.missing or made.unexpected):
        parts = [_listed("not published", made.missing), _listed("not in the module", made.unexpected)]
        first = (made.missing + made.unexpected)[0]
        kind = type(module).__name__
        raise InvalidError(f"{model} does not fit {kind}: {'; '.join(filter(None, parts))}", field=first)
    return made


def _listed(what: str, names: List[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{what}: {', '.join(names[:5])}{more}" if names else ""


def _check(name: str, tensor: torch.Tensor, entry: TensorEntry, same_dtype: bool, place: Place) -> None:
    shape, dtype = entry.shape, entry.dtype
    if not is_plain(tensor):
        if is_lazy(tensor):
            raise InvalidError(f"{name}: the parameter is not initialized: run the module once", field=name)
        raise UnsupportedError(f"{name}: a {type(tensor).__name__} has more state than a tensor", field=name)
    if tensor.shape != shape:
        raise InvalidError(f"{name}: shape {list(tensor.shape)} in the module, {list(shape)} published", field=name)
    if not tensor.is_meta and tensor.device != place.device:
        where = "the host" if place.is_host else f"{place.name} ({place.device} in this process)"
        message = f"{name}: the parameter is on {tensor.device}, and the published one on {where}"
        raise UnsupportedError(f"{message}: use to({str(place.device)!r}) or to('meta')", field=name)
    if same_dtype and dtype in DTYPES and tensor.dtype != DTYPES[dtype]:
        raise InvalidError(f"{name}: {tensor.dtype} in the module, published as {dtype}", field=name)


def written_storages(planned: Plan, manifest: Manifest) -> FrozenSet[int]:
    """The storages that a forward pass may write: those of buffers of parts in training mode, such as running statistics."""
    return frozenset(
        manifest.tensors[index].storage
        for index, found in planned.targets
        if any(kind != PARAMETER and owner.training for _, kind, _, owner, _ in found)
    )


def assign(planned: Plan, manifest: Manifest, shown: List[torch.Tensor], requires_grad: Optional[bool]) -> None:
    """Executes a plan. On an exception it restores the module."""
    undo: List[Callable[[], Any]] = []
    try:
        for index, found in planned.targets:
            entry, view = manifest.tensors[index], shown[index]
            parameters = [each for each in found if each[1] == PARAMETER]
            buffers = [each for each in found if each[1] != PARAMETER]
            if parameters:
                grad = parameters[0][2].requires_grad if entry.places[0][1] == TENSOR else entry.requires_grad
                grad = grad if requires_grad is None else requires_grad
                grad = grad and view.dtype.is_floating_point
                value = _reused(parameters, view, undo)
                if value is None:
                    value = torch.nn.Parameter(view, requires_grad=grad)
                    value.__dict__.update(parameters[0][2].__dict__)
                else:
                    undo.append(_grad_of(value))
                    value.requires_grad_(grad)
                _set(parameters, value, undo)
            if buffers:
                plain = view.detach() if parameters else view
                _set(buffers, _or(_reused(buffers, plain, undo), plain), undo)
    except BaseException:
        for back in reversed(undo):
            back()
        raise


def _or(value: Optional[torch.Tensor], otherwise: torch.Tensor) -> torch.Tensor:
    return otherwise if value is None else value


def _reused(found: List[NamedTensor], view: torch.Tensor, undo: List[Callable[[], Any]]) -> Optional[torch.Tensor]:
    """The existing object on the new memory, because optimizers refer to it by identity."""
    for _, kind, tensor, _, _ in found:
        if tensor.is_meta or tensor.dtype != view.dtype or tensor.is_inference() or view.is_inference():
            continue
        if kind != PARAMETER and (tensor.requires_grad or tensor._base is not None):
            continue
        before = tensor.data
        undo.append(_data_of(tensor, before))
        tensor.data = view
        return tensor
    return None


def _data_of(tensor: torch.Tensor, data: torch.Tensor) -> Callable[[], Any]:
    def back() -> None:
        tensor.data = data

    return back


def _grad_of(tensor: torch.Tensor) -> Callable[[], Any]:
    before = tensor.requires_grad
    return lambda: tensor.requires_grad_(before)


def _set(found: List[NamedTensor], value: torch.Tensor, undo: List[Callable[[], Any]]) -> None:
    for _, kind, tensor, owner, leaf in found:
        if tensor is value:
            continue
        undo.append(_attribute_of(owner, leaf, tensor))
        if type(owner).__setattr__ is torch.nn.Module.__setattr__ and leaf in owner._parameters and kind == PARAMETER:
            # As `__setattr__`, without its checks.
            owner._parameters[leaf] = value  # type: ignore[assignment]
        else:
            # Some modules, such as recurrent ones, also keep lists of their parameters.
            setattr(owner, leaf, value)


def _attribute_of(owner: torch.nn.Module, leaf: str, tensor: torch.Tensor) -> Callable[[], Any]:
    return lambda: setattr(owner, leaf, tensor)
