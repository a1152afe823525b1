"""What a module consists of, and how that is laid out."""

from __future__ import annotations

import collections.abc
import ctypes
import sys
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import torch
from torch.jit._script import RecursiveScriptModule
from torch.nn.parameter import is_lazy

from ...errors import InvalidError, UnsupportedError
from .manifest import (
    ALIGNMENT_BYTES,
    BUFFER,
    COUNT_MAX,
    ITEM_BYTES,
    NAME_BYTES_MAX,
    PARAMETER,
    TEMPORARY,
    TENSOR,
    Manifest,
    TensorEntry,
    aligned,
    is_name,
    span,
)

#: torch's types by their names here; some are newer than the oldest torch.
DTYPES: Dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
NAMES: Dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

Place = Tuple[str, str]


@dataclass
class Part:
    """A tensor's elements on their way into a storage."""

    #: Where the first one goes, from the storage's start.
    offset_bytes: int
    size_bytes: int
    #: Bytes that lie side by side; or, with ``scattered``, elements for the same strides, without what is between.
    tensor: torch.Tensor
    scattered: bool
    #: What owns the memory.
    keep: torch.Tensor


def check_module(module: Any) -> None:
    """Raises :class:`InvalidError` for what is none."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidError(f"module: a torch.nn.Module is expected, not {type(module).__name__}", field="module")


def plain_module(module: Any) -> torch.nn.Module:
    """The module; of one that ``torch.compile`` made, the module inside."""
    check_module(module)
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None and isinstance(module, compiler.OptimizedModule):
        inside: torch.nn.Module = module._orig_mod
        return inside
    return module  # type: ignore[no-any-return]


#: Name, kind and tensor, and the module whose attribute of which name it is.
Slot = Tuple[str, str, torch.Tensor, torch.nn.Module, str]


def slots(module: torch.nn.Module) -> List[Slot]:
    """Every parameter and buffer under every name it has."""
    found: List[Slot] = []
    for prefix, part in module.named_modules(remove_duplicate=False):
        dot = prefix + "." if prefix else ""
        for leaf, value in part._parameters.items():
            if value is not None:
                found.append((dot + leaf, PARAMETER, value, part, leaf))
        temporary = part._non_persistent_buffers_set
        for leaf, buffer in part._buffers.items():
            if buffer is not None:
                found.append((dot + leaf, TEMPORARY if leaf in temporary else BUFFER, buffer, part, leaf))
    return found


def places(module: torch.nn.Module) -> List[Tuple[str, str, torch.Tensor]]:
    """As :func:`slots`: name, kind, tensor."""
    return [slot[:3] for slot in slots(module)]


def check_complete(module: torch.nn.Module) -> None:
    """Raises :class:`UnsupportedError` for a module with weights that are neither parameters nor buffers."""
    known = {id(tensor) for _, _, tensor in places(module)}
    names = {name for name, _, _ in places(module)}
    for name, value in module.state_dict(keep_vars=True).items():
        if name not in names and id(value) not in known and not name.endswith("_extra_state"):
            _refuse_packed(name)
    for prefix, part in module.named_modules():
        attributes = vars(part)
        if isinstance(part, RecursiveScriptModule):
            attributes = {name: part._c.getattr(name) for name in part._concrete_type.get_attributes()}
        for name, value in attributes.items():
            # torch's quantized modules have their weights in objects of the backend's.
            if isinstance(value, torch.ScriptObject) and not isinstance(value, torch._C.ScriptModule):
                _refuse_packed(f"{prefix}.{name}" if prefix else name)


def _refuse_packed(name: str) -> None:
    raise UnsupportedError(
        f"{name}: it is neither a parameter nor a buffer, as packed weights of quantized modules are, and cannot be "
        "shared: publish the module before it is quantized",
        field=name,
    )


def of_mapping(mapping: Mapping[str, Any]) -> List[Tuple[str, str, torch.Tensor]]:
    """The tensors of a state dict."""
    if not isinstance(mapping, collections.abc.Mapping):
        raise InvalidError(f"mapping: a state dict is expected, not {type(mapping).__name__}", field="mapping")
    found = []
    for name, value in mapping.items():
        if not isinstance(name, str):
            raise InvalidError(f"a state dict's keys are texts, not {type(name).__name__}", field="mapping")
        if not isinstance(value, torch.Tensor):
            raise InvalidError(f"{name}: a tensor is expected, not {type(value).__name__}", field=name)
        found.append((name, TENSOR, value))
    return found


def check(name: str, tensor: torch.Tensor) -> None:
    """Whether a tensor can be published.

    Raises :class:`InvalidError` or :class:`UnsupportedError`, naming it.
    """
    if not is_name(name):
        raise InvalidError(f"{name[:80]!r}: a name of 1 to {NAME_BYTES_MAX} bytes is expected", field=name[:80])
    if is_lazy(tensor):
        raise InvalidError(f"{name}: it is not initialized: run the module once", field=name)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise UnsupportedError(
            f"{name}: a {type(tensor).__name__} is more than a tensor and cannot be shared", field=name
        )
    if tensor.is_meta:
        raise InvalidError(f"{name}: it has no data: it is on the meta device", field=name)
    if tensor.is_nested:
        raise UnsupportedError(f"{name}: it is a nested tensor: to_padded_tensor(0) first", field=name)
    if tensor.layout is not torch.strided:
        raise UnsupportedError(f"{name}: its layout is {tensor.layout}: to_dense() first", field=name)
    if tensor.is_quantized:
        raise UnsupportedError(f"{name}: it is a quantized tensor ({tensor.dtype}): dequantize() first", field=name)
    if tensor.device.type != "cpu":
        raise UnsupportedError(
            f"{name}: it is on {tensor.device}: cpu() first, shared memory is the host's", field=name
        )
    if tensor.dtype not in NAMES:
        raise UnsupportedError(f"{name}: {tensor.dtype} cannot be shared, only {', '.join(NAMES.values())}", field=name)
    if any(step >= COUNT_MAX for step in tensor.stride()):
        raise UnsupportedError(f"{name}: its strides are {list(tensor.stride())}: contiguous() first", field=name)
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedError(f"{name}: it is a lazy negation or conjugation: resolve_neg() first", field=name)


def gather(
    found: Iterable[Tuple[str, str, torch.Tensor]], module: str, source: Optional[Dict[str, Any]] = None
) -> Tuple[Manifest, List[List[Part]]]:
    """Lays tensors out: each memory once, whatever shows it.

    One that is the same tensor under several names has one entry. Tensors that overlap in memory stay so. Every tensor
    keeps its strides exactly, those of dimensions of size 1 included: torch chooses kernels and memory formats by them.
    """
    groups: Dict[Any, Shown] = {}
    for name, kind, tensor in found:
        check(name, tensor)
        key: Any = id(tensor)
        if kind == TENSOR and tensor.numel():
            # A state dict has an object of its own for every name of a tied parameter.
            key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        groups.setdefault(key, (tensor, []))[1].append((name, kind))
    clusters = _clusters(list(groups.values()))
    storages: List[Tuple[int, int]] = []
    entries: List[TensorEntry] = []
    sources: List[List[Part]] = []
    end = 0
    for cluster in clusters:
        parts, size_bytes, shown = _lay(cluster)
        offset = aligned(end)
        end = offset + size_bytes
        storages.append((offset, size_bytes))
        sources.append(parts)
        for tensor, named, stride, start_bytes in shown:
            entries.append(
                TensorEntry(
                    places=named,
                    dtype=NAMES[tensor.dtype],
                    shape=tuple(tensor.shape),
                    stride=stride,
                    storage=len(storages) - 1,
                    offset=start_bytes // tensor.element_size(),
                    requires_grad=tensor.requires_grad,
                )
            )
    return Manifest(module, storages, entries, source or {}), sources


Shown = Tuple[torch.Tensor, List[Place]]


def _extent(tensor: torch.Tensor) -> Tuple[int, int]:
    """The addresses between which a tensor lies."""
    start: int = tensor.data_ptr()
    return start, start + span(tensor.shape, tensor.stride()) * tensor.element_size()


def _clusters(shown: List[Shown]) -> List[List[Shown]]:
    """Tensors that overlap, together; the clusters in the order of their first tensors."""
    ordered = sorted(range(len(shown)), key=lambda index: _extent(shown[index][0]))
    clusters: List[List[int]] = []
    end = 0
    for index in ordered:
        start, stop = _extent(shown[index][0])
        if clusters and start < end and start < stop:
            clusters[-1].append(index)
        else:
            clusters.append([index])
        end = max(end, stop)
    return [[shown[index] for index in sorted(cluster)] for cluster in sorted(clusters, key=min)]


def _lay(cluster: List[Shown]) -> Tuple[List[Part], int, List[Tuple[torch.Tensor, List[Place], Tuple[int, ...], int]]]:
    """What is copied for a cluster, its length in bytes; and each tensor's strides in elements and start in bytes."""
    tensors = [tensor for tensor, _ in cluster]
    if not any(tensor.numel() for tensor in tensors):
        return [], 0, [(tensor, named, tensor.stride(), 0) for tensor, named in cluster]
    low = min(_extent(tensor)[0] for tensor in tensors)
    length = max(_extent(tensor)[1] for tensor in tensors) - low
    candidates = (low % ALIGNMENT_BYTES, *range(8))
    fits = (pad for pad in candidates if all((t.data_ptr() - low + pad) % t.element_size() == 0 for t in tensors))
    pad = next(fits, None)
    if pad is None:
        name = cluster[0][1][0][0]
        raise UnsupportedError(f"{name}: others show the same memory at odd addresses: clone() one of them", field=name)
    shown = [(t, named, t.stride(), t.data_ptr() - low + pad) for t, named in cluster]
    parts = [_part(tensor, start) for tensor, _, _, start in shown if tensor.numel()]
    return parts, pad + length, shown


def _part(tensor: torch.Tensor, start: int) -> Part:
    for dimension, step in enumerate(tensor.stride()):
        if step == 0:  # an expanded dimension: once
            tensor = tensor.narrow(dimension, 0, 1)
    tensor = tensor.detach()
    extent = span(tensor.shape, tensor.stride())
    if extent > tensor.numel() and _is_apart(tensor):
        return Part(start, tensor.numel() * tensor.element_size(), tensor, True, tensor)
    size_bytes = extent * tensor.element_size()
    # Not by its storage: what is made of foreign memory may show it from the middle.
    window = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
    return Part(start, size_bytes, torch.frombuffer(window, dtype=torch.uint8), False, tensor)


def _is_apart(tensor: torch.Tensor) -> bool:
    """Whether no two elements share memory; False when that is hard to tell."""
    reach = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and step < reach:
            return False
        reach += (size - 1) * step
    return True


def contiguous_stride(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """Strides in elements of row-major order."""
    stride: List[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))
